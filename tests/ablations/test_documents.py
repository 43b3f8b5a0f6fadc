"""What the documents say exists: files, verbs, and examples that load."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from ablations.cli import all_verbs
from ablations.study.manifest import load_study
from ablations.study.schema import Resources
from ablations.study.site import Site, read_site
from sdtps.system.errors import ManifestError

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ablations" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_files_that_documents_name_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    files = re.findall(
        r"`((?:ablations|analysis|sdtps|tests|benchmarks)/[\w/.]+\.(?:py|yaml|sh))`", text
    )
    missing += [file for file in files if not (ROOT / file).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_verbs_that_documents_name_exist(document: Path) -> None:
    code = re.findall(r"```sh\n(.*?)```|`([^`\n]+)`", document.read_text(encoding="utf-8"), re.DOTALL)
    said = {
        verb for parts in code for verb in re.findall(r"(?:^|\s)sdtps ([a-z][a-z-]*)", "\n".join(parts))
    }
    assert said <= all_verbs().keys()


def test_the_site_of_the_documents_is_one(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    example = next(e for e in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "gpu_type" in e)
    (tmp_path / "site.yaml").write_text(example)
    assert read_site(tmp_path / "site.yaml").gpu_type == "a100"
    assert yaml.safe_load(example).keys() <= Site.model_fields.keys()


def test_the_schema_names_the_defaults_of_resources() -> None:
    text = (ROOT / "ablations" / "README.md").read_text(encoding="utf-8")
    defaults = {key: value for key, value in Resources().model_dump().items() if value}
    assert not [key for key, value in defaults.items() if f"`{key}: {value}`" not in text]


def test_the_study_of_the_readme_is_one(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = (e for e in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "study: mine" in e)
    (tmp_path / "mine.yaml").write_text(example)
    with pytest.raises(ManifestError, match=r"cp .*/ablations/base/quick\.yaml"):
        load_study(tmp_path / "mine.yaml")
    (tmp_path / "base").mkdir()
    shutil.copy(ROOT / "ablations" / "base" / "quick.yaml", tmp_path / "base")
    assert len(load_study(tmp_path / "mine.yaml").runs()) == 4


def test_no_document_names_a_package_index() -> None:
    """Machines install from indexes of their own; PyTorch's install page tells about the CPU build."""
    index = re.compile(r"index-url|find-links|https?://\S*/(?:whl|simple)\b")
    assert not [
        d.name for d in [*DOCUMENTS, ROOT / "CHANGELOG.md"] if index.search(d.read_text("utf-8"))
    ]
