"""The pictures of docs/gallery/ and the outputs in docs/gallery.md, from runs on generated images.

make gallery          trains the studies quick and captions where they are missing, then runs this

Needs LaTeX, pdftoppm and Chromium (.ci/packages latex browser).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageOps

from sdtps.config.reid import GeneratedReidConfig
from sdtps.data.generated import generate_rgbnt201

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
COLOURS = 256  # of a picture's palette
LINES = 18  # of an output that is shown


def sdtps(*words: str) -> str:
    """What a verb prints; its exit code may say that something is open."""
    command = [str(Path(sys.executable).with_name("sdtps")), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"sdtps {' '.join(words)}: {done.stderr}")
    return done.stdout


def run_folder(study: str, variant: str) -> str:
    return str(next((ROOT / "runs" / study / variant).glob("seed0-*/result.json")).parent)


def save(image: Image.Image, name: str, width: int, colours: int = COLOURS) -> None:
    image = image.convert("RGB")
    height = round(image.height * width / image.width)
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    # By an octree: the cut at the median drops the colours of thin lines.
    image.quantize(colours, Image.Quantize.FASTOCTREE).save(GALLERY / name, optimize=True)


def screenshot(page: Path, name: str, size: tuple[int, int], *, view: str = "") -> None:
    """A page in headless Chromium; `view` is the address's fragment."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "page.png"
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        window = f"--window-size={size[0]},{size[1]}"
        address = f"{page.absolute().as_uri()}{view}"
        words = [browser, *options, window, f"--screenshot={target}", address]
        subprocess.run(words, check=True, capture_output=True)
        save(Image.open(target), name, min(size[0], 1100))


def page_of(pdf: Path, name: str) -> None:
    """The first page of a PDF without its margins."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "page"
        command = ["pdftoppm", "-png", "-singlefile", "-r", "130", str(pdf), str(target)]
        subprocess.run(command, check=True)
        image = Image.open(target.with_suffix(".png")).convert("RGB")
    left, top, right, bottom = ImageOps.invert(image).getbbox() or (0, 0, *image.size)
    save(ImageOps.expand(image.crop((left, top, right, bottom)), 20, "white"), name, 760, colours=16)


ALONE = r"""\documentclass{article}
\usepackage[textwidth=5.5in]{geometry}
\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}\usepackage{mathptmx,booktabs}
\pagestyle{empty}
\begin{document}
\input{table}
\end{document}
"""


def table_alone(table: Path, name: str) -> None:
    """A generated table in a document of its own."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(table, Path(folder) / "table.tex")
        (Path(folder) / "alone.tex").write_text(ALONE)
        command = ["pdflatex", "-interaction=batchmode", "alone.tex"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        page_of(Path(folder) / "alone.pdf", name)


def table_of_pictures(work: Path) -> Path:
    """A CSV of generated test pictures, with identity and camera from their names."""
    size = GeneratedReidConfig(train_pids=2, test_pids=6)
    images = generate_rgbnt201(size, 64, 32, work)
    lines = ["path,pid,camid,modality,split"]
    for modality, folder in (("rgb", "RGB"), ("nir", "NI"), ("tir", "TI")):
        for file in sorted(images.glob(f"RGBNT201/test/{folder}/*")):
            pid, camera = file.stem.split("_")[:2]
            lines.append(f"{file},{pid},{camera},{modality},test")
    (work / "pictures.csv").write_text("\n".join(lines))
    return work / "pictures.csv"


def pictures(work: Path) -> None:
    generated = ROOT / "paper" / "generated"
    for name in ("quick_gumbel", "quick-differences"):
        save(Image.open(generated / "figures" / f"{name}.png"), f"{name}.png", 900)
    page_of(ROOT / "paper" / "main.pdf", "paper.png")
    table_alone(generated / "tables" / "quick_main.tex", "table.png")
    report = generated / "report.html"
    screenshot(report, "report.png", (1100, 760))
    screenshot(report, "report-dark.png", (1400, 1260), view="#theme=dark&charts=eval%7CmAP,train%7Clr")
    kept, words = work / "reid.png", work / "captions.png"
    both = run_folder("quick", "topk"), run_folder("quick", "nograd_attention")
    sdtps("patches", *both, "--images", "3", "-o", str(kept))
    sdtps("patches", run_folder("captions", "released"), "--images", "2", "-o", str(words))
    save(Image.open(kept), "patches.png", 760)
    save(Image.open(words), "patches-words.png", 760)
    found = table_of_pictures(work)
    ranking = work / "ranking.html"
    places = (str(found), "--query", str(found), "--top", "4", "--out", str(ranking))
    sdtps("rank", run_folder("quick", "topk"), *places)
    screenshot(ranking, "rank.png", (1100, 640))
    sdtps(*ATTRIBUTION, "--submit", "--executor", "local")
    sdtps("curves", "gumbel", "--out", str(work / "curves"))
    save(Image.open(work / "curves" / f"{'-'.join(ATTRIBUTION[1:])}.png"), "attribution.png", 900)


ATTRIBUTION = ("attribute", "gumbel", "topk_no_mask", "gumbel_tau5_clamp")
OUTPUTS = {
    "plan": ("plan", "mask_constant", "-v", "c1*"),
    "watch": ("watch", "quick", "--once"),
    "tables": ("tables", "quick", "--table", "quick_main"),
    "compare": ("compare", "quick", "log_mask", "gumbel_tau1", "--metric", "rank1"),
    "explain": ("explain", "quick_main:topk:mAP"),
    "audit": ("audit", "quick", "-v", "topk", "-v", "gumbel_tau1"),
    "claims": ("claims", "quick", "--only", "43", "--only", "49", "--only", "57"),
    "attribute": ATTRIBUTION,
}


def block(words: Sequence[str], output: str) -> str:
    """A command and what it printed."""
    lines = output.replace(str(ROOT), ".").rstrip().splitlines()
    shown = [line.rstrip() for line in lines[:LINES]] + ["..."] * (len(lines) > LINES)
    return "\n".join([f"$ sdtps {' '.join(words)}", *shown, ""])


def fill(page: str, blocks: Mapping[str, str]) -> None:
    """Put today's outputs between a page's marks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name, new in blocks.items():
        start = f"<!-- {name} -->\n```\n"
        before, after = text.split(start)
        end = 0 if after.startswith("```") else after.index("\n```\n") + 1
        text = f"{before}{start}{new}{after[end:]}"
    (ROOT / "docs" / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    GALLERY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pictures(Path(folder))
    fill("gallery.md", {name: block(words, sdtps(*words)) for name, words in OUTPUTS.items()})
    total = sum(p.stat().st_size for p in GALLERY.glob("*.png"))
    print(f"{GALLERY.relative_to(ROOT)}: {total / 1e3:.0f} kB of pictures")
