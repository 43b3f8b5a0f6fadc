from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ablations.study.arguments import filtered
from ablations.study.manifest import load_study
from ablations.study.model import Study
from sdtps.config import identity
from sdtps.system.errors import ManifestError

HEAD = """\
study: small
task: reid
seeds: [0, 1]
baseline: topk
varies: [sdtps.decision, sdtps.mask, sdtps.temperature, sdtps.keep_ratio, optim.lr, data.workers]
metrics: {mAP: {direction: up}, rank1: {direction: up}}
"""
VARIANTS = """\
variants:
  topk: {}
  gumbel: {sdtps.decision: gumbel_ste, sdtps.mask: subtract_1e10, label: "Gumbel, $C$", source: "v1"}
"""
Load = Callable[[str], Study]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def read(text: str) -> Study:
        path = tmp_path / "small.yaml"
        path.write_text(text, encoding="utf-8")
        return load_study(path)

    return read


def mistakes(load: Load, text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load(text)
    head, *lines = str(caught.value).splitlines()
    assert "nothing was done" in head
    return [line.partition("small.yaml:")[2] or line for line in lines]


def only(load: Load, text: str) -> str:
    found = mistakes(load, text)
    assert len(found) == 1, found
    return found[0]


def test_a_study_has_a_run_for_each_variant_and_seed(load: Load, tmp_path: Path) -> None:
    study = load(HEAD + VARIANTS)
    runs = study.runs()
    assert [(r.variant, r.seed) for r in runs] == [
        ("topk", 0),
        ("topk", 1),
        ("gumbel", 0),
        ("gumbel", 1),
    ]
    run = runs[3]
    assert run.identity == identity(study.variants["gumbel"].config, 1)
    assert run.folder(tmp_path) == tmp_path / "small" / "gumbel" / f"seed1-{run.identity}"
    assert study.variants["gumbel"].label == "Gumbel, $C$"
    assert study.differences("topk") == {}
    assert study.differences("gumbel") == {
        "sdtps.decision": ("topk", "gumbel_ste"),
        "sdtps.mask": ("none", "subtract_1e10"),
    }
    assert study.variants["topk"].label == "topk"


def test_five_planted_mistakes_are_reported_at_once(load: Load) -> None:
    text = HEAD.replace("seeds: [0, 1]", "seeds: [0, 0]").replace("rank1: {direction: up}", "rank1: {}")
    text += """\
variants:
  topk: {}
  a: {sdtps.keep_ratoi: 0.3}
  b: {sdtps.keep_ratio: half}
  c: {sdtps.beta: 0.1}
"""
    found = mistakes(load, text)
    assert [int(line.split(":")[0]) for line in found] == [3, 6, 9, 10, 11]
    assert "seed 0 is repeated" in found[0]
    assert "metrics.rank1: 'direction' is missing: up or down" in found[1]
    assert "unknown key 'sdtps.keep_ratoi'. Did you mean 'sdtps.keep_ratio'?" in found[2]
    assert "'half' is not allowed. Allowed: a number above 0, at most 1." in found[3]
    assert "'sdtps.beta' may not change here: 'varies' lists" in found[4]


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("sedes: 1\n", "7: sedes: unknown key. Did you mean 'seeds'?"),
        ("tables: [{name: m, kind: mian}]\n", "Did you mean 'main'?"),
        ("tables: [{name: m, metrics: [map]}]\n", "'map' is not among 'metrics'. Did you mean 'mAP'?"),
        ("tables: [{name: m, rows: [top]}]\n", "'top' is not a variant. Did you mean 'topk'?"),
        ("tables: [{name: m}, {name: M}]\n", "'M' would share files with 'm'"),
        ("tables: [{name: main}, {name: small-main}]\n", "'small-main' would share files with 'main'"),
        ("tables: [{name: Compute}]\n", "share files with compute, made for every study"),
        ("tables: [{name: c, kind: conditions, rows: [topk]}]\n", "metrics such as mAP@missing_r"),
        ("tables: [{name: m, kind: components}]\n", "no variant has 'components'"),
        ("tables: [{name: s, kind: sweep}]\n", "'axis' (a dotted configuration key) goes with"),
        ("figures: [{name: f, panel_by: sdtps.tau}]\n", "is not a configuration key"),
        ("figures: [{name: ../f}]\n", "names a file"),
        ("resources: {gpu: 1}\n", "unknown key 'gpu'. Did you mean 'gpus'?"),
        ("resources: {mem_gb: 1e-9}\n", "Allowed: a number of GB from 0.001 (1 MB) to 1048576"),
        ("resources: {nodes: 2.0}\n", "Did you mean 2? Allowed: a whole number from 1 to 65533."),
        ("resources: {runs_per_gpu: 9000, cpus: 8, gpus: 1}\n", "are more CPUs than a job may ask"),
        ("resources: {gpus: a100}\n", "or a type with a number (a100:2)"),
        ("resources: {gpus: 1, sbatch: {gres: 'gpu:2'}}\n", "'gres' contradicts gpus (1)"),
        ("resources: {srun: --mpi=pmix}\n", "Did you mean [--mpi=pmix]? Allowed: a list, each item"),
        ("resources: {sbatch: {job_name: x}}\n", "sbatch: 'job-name' cannot be set"),
        ("resources: {mem_gb: 4, sbatch: {mem: 0}}\n", "'mem' contradicts mem_gb (4"),
        (
            "resources: {gpus: 1, sbatch: {--gpus-per-node: 2}}\n",
            "contradicts gpus (1): set gpus instead",
        ),
        ("resources: {sbatch: {x: [1]}}\n", "Allowed: text or a whole number or true or false."),
        ("resources: {timeout_min: 1:30}\n", "'1:30' is not a time limit"),
        (
            "reported: [{variant: topk, source: x, values: {mAP: about 79}}]\n",
            "Allowed: a number as it is printed",
        ),
        ("reported: [{source: x, values: {mAP: '79.0'}}]\n", "give either 'variant'"),
        ("reported: [{variant: topk, csv: no.csv, where: {}, columns: {}}]\n", "'no.csv' lies neither"),
        ("base: absent.yaml\n", "No such file"),
        ("overrides: {sdtps.betta: 1}\n", "Did you mean 'sdtps.beta'?"),
        ("overrides: {sdtps.beta: 7}\n", "7 is not allowed. Allowed: a number from 0 to 1."),
        ("grid: 3\n", "must be a mapping"),
        ("title: 基\n", "7: title: LaTeX cannot print 基 (U+57FA)"),
        ("tables: [{name: x, caption: 'a 基'}]\n", "7: tables[0].caption: LaTeX cannot print 基"),
    ],
)
def test_a_mistake_anywhere_is_told_with_what_is_allowed(load: Load, extra: str, says: str) -> None:
    assert says in only(load, HEAD + extra + VARIANTS)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "seeds: [0, 1]",
            "seeds: []",
            "3: seeds: [] is not allowed. Allowed: a list of at least 1 item",
        ),
        (
            "baseline: topk",
            "baseline: tokp",
            "4: baseline: 'tokp' is not a variant. Did you mean 'topk'",
        ),
        (
            "rank1: {direction: up}",
            "rank1: {direction: null}",
            "direction: 'null' is not allowed. Allowed: down, up.",
        ),
        ("rank1: {direction: up}", "rank1: {direction: up, label: 基}", "cannot print 基 (U+57FA)"),
        ("rank1: {direction: up}", "rank1: {direction: up, unit: percent}", "Write '%' where runs log"),
        ("seeds: [0, 1]", "seeds: 2", "2 is no list: write [0, 1] for 2 seeds, or [2] for seed 2"),
        ("varies: [sdtps.decision", "vareis: [x", "5: vareis: unknown key. Did you mean 'varies'?"),
    ],
)
def test_a_mistake_in_the_head_is_the_only_one(load: Load, old: str, new: str, says: str) -> None:
    assert old in HEAD
    assert says in only(load, HEAD.replace(old, new) + VARIANTS)


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ("same: {sdtps.decision: topk}", "'same' and 'topk' (line 8) are one configuration"),
        (
            "two: {sdtps.decision: gumbel_ste, sdtps.mask: subtract_1.0e+10}",
            "'two' and 'gumbel' (line 9)",
        ),
        ("slow: {data.workers: 1}", "data.workers makes no difference here"),
        ("x: {extends: x, optim.lr: 1}", "leads back to itself: x extends x"),
        ("x: {extends: gumbl, optim.lr: 1}", "'gumbl' is not a variant. Did you mean 'gumbel'?"),
        ("x: {optim.lr: fast}\n  y: {extends: x, optim.lr: 2}\n  z: {extends: x}", "variants.x"),
        ("x: {sdtps.keep_ratio: 0.25, label: 基}", "LaTeX cannot print 基 (U+57FA)"),
        ("x: {sdtps.keep_ratio: 0.25, components: {基: true}}", "LaTeX cannot print 基 (U+57FA)"),
        ("topk: {optim.lr: 1e-4}", "'variants.topk' is given twice: lines 8 and 10"),
        ("x: {sdtps: {mask: log}}", "such as 'sdtps.mask: ...'"),
        ("x: {lable: no, optim.lr: 1}", "unknown key 'lable'. Did you mean 'label'?"),
        ("x: [optim.lr]", "must map dotted keys to values"),
        ("x: {optim.lr: on}", "'on' is not allowed. Allowed: a number above 0."),
        ("x: {optim.lr: true}", "true is not allowed. Allowed: a number above 0."),
        ("x: {optim.lr: '1e-3'}", "Did you mean 0.001, without quotes? Allowed: a number above 0."),
        (
            "x: {optim.lr: 1, components: {G: [1]}}",
            "[1] is not allowed. Allowed: true or false or text",
        ),
        ("x: {optim.lr: 1, components: [G]}", "Allowed: a mapping, each value true or false or text."),
        ("x: {optim.lr: 1, label: ''}", "'' is not allowed. Allowed: text that is not empty or null."),
        ("x: {optim.lr: 1, color: redd}", "'redd' is not a colour. Did you mean 'red'?"),
        ("x: {optimiser.lr: 1}", "Did you mean 'optim.lr'?"),
        ("x: {sdtps.mask: subtract_1e10, sdtps.decision: gumbel}", "Did you mean 'gumbel_ste'?"),
        ("x: {optim.lr: 1, color: '#12'}", "Allowed: a colour such as '#0072B2' (in quotes), C0"),
        ("x: {optim.lr: 1, resources: {gpsu: 1}}", "Did you mean 'gpus'?"),
        ("GUMBEL: {optim.lr: 1}", "'GUMBEL' and 'gumbel' (line 9) would share a folder"),
        ('"a\\nb": {optim.lr: 1}', "is not a name"),
        ("'': {optim.lr: 1}", "is not a name"),
    ],
)
def test_a_mistake_in_a_variant_names_its_line(load: Load, variant: str, says: str) -> None:
    found = only(load, f"{HEAD}{VARIANTS}  {variant}\n")
    assert says in found
    assert found.startswith("10: ")


@pytest.mark.parametrize(
    ("key", "variants", "says"),
    [
        (
            "sdtps.aggregation",
            "x: {sdtps.aggregation: none, sdtps.mask: log}",
            "10: variants.x: sdtps: mask 'log' needs aggregation single",
        ),
        (
            "backbone.weights",
            "here: {backbone.weights: /a/w.pt}\n  there: {backbone.weights: /b/w.pt}",
            "11: variants.there: 'there' and 'here' (line 10) are one configuration: backbone.weights "
            "makes no difference here (of a file only the name counts, not its folder)",
        ),
        ("optim.lr", "x: {optim.lr: 1e-4}\n  y: {optim.lr: 1.0e-04}", "'y' and 'x' (line 10) are one"),
        ("optim.lr", "x: {extends: y}\n  y: {extends: x}", "x extends y extends x"),
        (
            "sdtps.enabled",
            "off: {sdtps.enabled: false}\n  two: {sdtps.enabled: false, sdtps.keep_ratio: 0.25}",
            "sdtps.keep_ratio",
        ),
    ],
)
def test_settings_that_go_together_are_looked_at_together(
    load: Load, key: str, variants: str, says: str
) -> None:
    head = HEAD if key in HEAD else HEAD.replace("varies: [", f"varies: [{key}, ")
    assert says in only(load, f"{head}{VARIANTS}  {variants}\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a study is a mapping with keys study"),
        ("a: [\n", "small.yaml: line"),
        ("study: small\n\ttask: reid\n", "line 2: a tab"),
        ("a:\n  b: {p} 'x'\n", "line 2: a text that begins with { must be quoted: b: '{p} ''x'''"),
        ("a: {b: {python} p.py {seed}, c: 1}\n", "quoted: a: {b: '{python} p.py {seed}', c: 1}"),
        (
            HEAD.replace("reid", "command").split("varies")[0]
            + "varies: [settings]\noverrides: {comand: echo, settings: {a: 1}}\n"
            "variants: {topk: {}, b: {settings.a: 2}}\n",
            "1 mistake; nothing was done.\n{file}:6: overrides.comand: unknown key 'comand'",
        ),
        (
            f"{HEAD}tables: [{{name: c, kind: components}}]\nvariants:\n"
            "  topk: {components: {a: true, b: false}}\n"
            "  x: {optim.lr: 1, components: {a: true}}\n",
            "1 mistake; nothing was done.\n{file}:10: variants.x: table 'c' needs its components b",
        ),
    ],
)
def test_a_text_that_is_no_study_is_one_message(
    load: Load, tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        load(text)
    assert says.replace("{file}", str(tmp_path / "small.yaml")) in str(caught.value)


def test_a_setting_of_the_study_is_dropped_where_it_does_nothing_and_refused_where_it_is_named(
    load: Load,
) -> None:
    head = HEAD.replace("varies: [", "varies: [sdtps.enabled, ")
    shared = "overrides: {sdtps.decision: gumbel_ste, sdtps.temperature: 5}\n"
    variants = "variants: {gumbel: {}, topk: {sdtps.decision: topk}, off: {sdtps.enabled: false}}\n"
    study = load(head + shared + variants)
    assert study.differences("topk").keys() == {"sdtps.decision", "sdtps.temperature"}
    plain = load(HEAD + "variants: {topk: {}}\n")
    assert study.variants["topk"].canonical == plain.variants["topk"].canonical
    named = variants.replace("decision: topk", "decision: topk, sdtps.temperature: 5")
    assert "sdtps.temperature" in only(load, head + shared + named)


def test_mistakes_in_the_base_carry_its_name_and_do_not_hide_others(load: Load, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "sdtps: {beta: x}\noptim.lr: 1e-3\noptim: {lr: 2}\ntask: reid\n"
    )
    found = mistakes(load, f"{HEAD}base: base.yaml\n{VARIANTS}  y: {{optim.lr: z}}\n")
    assert [f.partition(str(tmp_path))[2] or f for f in found] == [
        "11: variants.y.optim.lr: 'z' is not allowed. Allowed: a number above 0.",
        "/base.yaml:1: sdtps.beta: 'x' is not allowed. Allowed: a number from 0 to 1.",
        "/base.yaml:3: optim.lr: 'optim.lr' and 'optim.lr' (line 2) set the same value",
    ]


def test_base_may_be_nested_or_dotted_and_overrides_lie_between(load: Load, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "task: reid\nsdtps:\n  beta: 0.1\n  keep_ratio: 0.7\ndata.generate: {seed: 3}\n"
    )
    study = load(
        f"{HEAD}base: base.yaml\noverrides: {{sdtps.beta: 0.2, data.generate: null}}\n{VARIANTS}"
    )
    config = study.variants["topk"].config
    assert config.task == "reid"
    assert (config.sdtps.beta, config.sdtps.keep_ratio, config.data.generate) == (0.2, 0.7, None)
    assert config.optim.backbone_lr == 5e-6  # the task's recipe stays


def test_names_are_free_text_and_folders_are_safe_and_distinct(load: Load) -> None:
    plain = ["off", "none", "1", "1e-4"]
    odd = ["w/o_msa & 5% #1 {x} ~^\\", "../..", "w/o msa", "w_o msa", ".x", "é"]
    names = [*plain, *odd]
    written = [*plain, *(f"'{name}'" for name in odd)]
    lines = [f"  {name}: {{sdtps.keep_ratio: {0.1 + i / 25}}}" for i, name in enumerate(written)]
    quoted = "\n".join(lines)
    study = load(f"{HEAD}{VARIANTS}{quoted}\n")
    assert list(study.variants)[2:] == names
    slugs = [study.variants[n].slug for n in names]
    assert slugs[:4] == ["off", "none", "1", "1e-4"]
    assert len({s.casefold() for s in slugs}) == len(names)
    alone = load(f"{HEAD}{VARIANTS}  'w/o msa': {{optim.lr: 1}}\n").variants["w/o msa"].slug
    assert alone == study.variants["w/o msa"].slug  # it depends on its own name only
    assert all("/" not in s and s[0].isalnum() and s.isascii() for s in slugs)


def test_what_looks_like_a_number_is_text_where_text_is_wanted(load: Load) -> None:
    text = HEAD.replace("baseline: topk", "baseline: 1e-4") + (
        "variants: {1e-4: {}, 1: {optim.lr: 1, source: 6334359, label: 010}}\n"
        "tables: [{name: 2024-01-02, rows: [1, 1e-4]}]\n"
        "reported: [{variant: 1, source: 12, values: {mAP: 79.10}}]\n"
    )
    study = load(text)
    assert study.baseline == "1e-4"
    assert (study.variants["1"].source, study.variants["1"].label) == ("6334359", "010")
    assert study.tables[0].rows == ("1", "1e-4")
    assert study.reported[0].values == {"mAP": "79.10"}


def test_resources_of_a_variant_lie_over_the_studys(load: Load) -> None:
    text = f"{HEAD}resources: {{gpus: 1, timeout_min: '1-02:00:00'}}\n{VARIANTS}"
    study = load(f"{text}  big: {{optim.lr: 1, resources: {{gpus: 4}}}}\n")
    big = study.variants["big"].resources
    assert (big.gpus, big.timeout_min, study.resources.gpus) == (4, 26 * 60, 1)


def test_reported_numbers_come_from_csv_as_printed(load: Load, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("row,mAP,source\nA,70.70,Table 3\nB,73.0,Table 3\nB,1,x\n")
    entry = "reported: [{{variant: topk, csv: r.csv, where: {{row: {}}}, columns: {{mAP: {}}}}}]\n"
    study = load(HEAD + entry.format("A", "mAP") + VARIANTS)
    assert study.reported[0].values == {"mAP": "70.70"}
    assert study.reported[0].source == "Table 3"
    assert "selects 2 rows" in only(load, HEAD + entry.format("B", "mAP") + VARIANTS)
    assert "Did you mean 'mAP'?" in only(load, HEAD + entry.format("A", "map") + VARIANTS)


def test_data_root_is_filled_in_and_changes_no_identity(load: Load, tmp_path: Path) -> None:
    study = load(HEAD + VARIANTS)
    moved = load_study(study.path, data_root="somewhere")
    assert moved.variants["gumbel"].config.data.root == str(Path("somewhere").absolute())
    assert [r.identity for r in moved.runs()] == [r.identity for r in study.runs()]
    study.path.write_text(HEAD + "overrides: {data.generate: {seed: 1}}\n" + VARIANTS)
    made = load_study(study.path, data_root="somewhere").variants["topk"].config.data
    assert made.root is None  # generated images do not go where benchmarks lie


def test_digest_changes_with_manifest_and_base(load: Load, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("sdtps.beta: 0.1\n")
    text = f"{HEAD}base: base.yaml\n{VARIANTS}"
    first = load(text).digest
    assert load(text).digest == first
    assert load(text + "notes: x\n").digest != first
    (tmp_path / "base.yaml").write_text("sdtps.beta: 0.2\n")
    assert load(text).digest != first


def test_selection_of_variants_and_seeds(load: Load) -> None:
    study = load(HEAD + VARIANTS)
    assert [(r.variant, r.seed) for r in filtered(study, ["gum*"], [1]).runs()] == [("gumbel", 1)]
    with pytest.raises(ManifestError, match=r"(?s)no variant 'gumbl'.*'gumbel'.*no seed 7"):
        filtered(study, ["gumbl"], [7])


@pytest.mark.parametrize("written", ["varies: optim.lr", "", "varies: []", "varies:"])
def test_a_list_of_what_varies_that_is_wrong_or_missing_is_one_mistake(
    load: Load, written: str
) -> None:
    variants = "variants: {topk: {}, x: {optim.lr: 1}, y: {optim.lr: 2}}\n"
    assert "varies" in only(load, re.sub("varies: .*", written, HEAD) + variants)


def test_what_a_terminal_would_obey_is_printed_as_escapes(load: Load) -> None:
    found = mistakes(
        load,
        HEAD.replace("baseline: topk", 'baseline: "\\e[2Jtopk"')
        + VARIANTS
        + '  "red\\e[31m": {optim.lr: 1}\n'
        + '  x: {"optim.lr\\r": 1}\n'
        + '  "two\\nlines": {optim.lr: 2}\n',
    )
    assert all(line.isprintable() for line in found), found
    assert any(r"\x1b[2Jtopk" in line for line in found)


def test_a_variant_extends_another_and_its_own_keys_win(load: Load) -> None:
    study = load(
        HEAD
        + VARIANTS
        + "  hot: {extends: warm, optim.lr: 3, components: {b: true}}\n"
        + "  warm: {extends: gumbel, optim.lr: 2, resources: {cpus: 5}, components: {a: true}}\n"
    )
    hot = study.variants["hot"]
    assert hot.extends == "warm"
    assert hot.overrides == {**study.variants["gumbel"].overrides, "optim.lr": 3}
    assert hot.config.sdtps.decision == "gumbel_ste" and hot.config.optim.lr == 3
    assert hot.resources.cpus == 5
    assert hot.components == {"a": True, "b": True}
    assert hot.label == "hot"


@pytest.mark.parametrize("to", ["link.yaml", "no.yaml"])
def test_a_manifest_or_base_that_is_a_broken_link_is_called_so(tmp_path: Path, to: str) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(to)
    with pytest.raises(ManifestError, match=rf"link\.yaml: is a broken link \(to {to}\)"):
        load_study(link)
    (tmp_path / "study.yaml").write_text(f"{HEAD}base: link.yaml\n{VARIANTS}")
    with pytest.raises(ManifestError, match=rf"link\.yaml: is a broken link \(to {to}\)"):
        load_study(tmp_path / "study.yaml")
