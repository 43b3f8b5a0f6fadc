"""The pictures of docs/gallery/ and the outputs in docs/gallery.md, from runs on generated images.

make gallery          trains the studies quick and captions where they are missing, then runs this

Needs LaTeX, pdftoppm and Chromium (.ci/packages latex browser).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
PAGE = ROOT / "docs" / "gallery.md"
COLOURS = 64  # of a screenshot's palette: text and lines need no more
LINES = 30  # of an output that is shown


def sdtps(*words: str) -> str:
    """What a verb prints; its exit code may say that something is open."""
    command = [sys.executable, "-m", "ablations.cli", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"sdtps {' '.join(words)}: {done.stderr}")
    return done.stdout


def run_folder(study: str, variant: str) -> str:
    return str(next((ROOT / "runs" / study / variant).glob("seed0-*/result.json")).parent)


def save(image: Image.Image, name: str, width: int) -> None:
    image = image.convert("RGB")
    height = round(image.height * width / image.width)
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    image.quantize(COLOURS).save(GALLERY / name, optimize=True)


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


def page_of(pdf: Path, number: int, name: str, crop: tuple[float, float, float, float]) -> None:
    """A part (left, top, right, bottom as shares) of a PDF's page."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "page"
        pages = ("-f", str(number), "-l", str(number), "-r", "130")
        command = ["pdftoppm", "-png", "-singlefile", *pages, str(pdf), str(target)]
        subprocess.run(command, check=True)
        image = Image.open(target.with_suffix(".png"))
        left, top, right, bottom = crop
        box = (left * image.width, top * image.height, right * image.width, bottom * image.height)
        save(image.crop(tuple(map(round, box))), name, 800)


def page_with(pdf: Path, words: str) -> int:
    """The first page of a PDF that has these words."""
    text = subprocess.run(
        ["pdftotext", str(pdf), "-"], check=True, capture_output=True, text=True
    ).stdout
    return next(n for n, page in enumerate(text.split("\f"), 1) if words in " ".join(page.split()))


def pictures(work: Path) -> None:
    generated = ROOT / "paper" / "generated"
    for name in ("quick_gumbel", "quick-differences"):
        save(Image.open(generated / "figures" / f"{name}.png"), f"{name}.png", 900)
    pdf = ROOT / "paper" / "main.pdf"
    page_of(pdf, 1, "paper.png", (0.08, 0.06, 0.92, 0.95))
    page_of(pdf, page_with(pdf, "SDTPS on generated images. Mean"), "table.png", (0.1, 0.05, 0.9, 0.6))
    report = generated / "report.html"
    screenshot(report, "report.png", (1400, 900))
    screenshot(report, "report-dark.png", (1400, 900), view="#theme=dark&charts=eval%7CmAP,train%7Clr")
    kept, words = work / "reid.png", work / "captions.png"
    both = run_folder("quick", "topk"), run_folder("quick", "nograd_attention")
    sdtps("patches", *both, "-o", str(kept))
    sdtps("patches", run_folder("captions", "released"), "--images", "2", "-o", str(words))
    save(Image.open(kept), "patches.png", 900)
    save(Image.open(words), "patches-words.png", 900)
    images = work / "images"
    sdtps("generate", str(images))
    found = next(images.rglob("RGB")).parent
    ranking = work / "ranking.html"
    places = (str(found), "--query", str(found), "--top", "4", "--out", str(ranking))
    sdtps("rank", run_folder("quick", "topk"), *places)
    screenshot(ranking, "rank.png", (1100, 640))


OUTPUTS = {
    "plan": ("plan", "quick"),
    "watch": ("watch", "quick", "--once"),
    "tables": ("tables", "quick", "--table", "quick_main"),
    "compare": ("compare", "quick", "log_mask", "gumbel_tau1", "--metric", "rank1"),
    "explain": ("explain", "quick_main:topk:mAP"),
    "audit": ("audit", "quick", "-v", "topk", "-v", "gumbel_tau1"),
    "claims": ("claims", "quick", "--only", "43", "--only", "49", "--only", "57"),
    "attribute": ("attribute", "quick", "log_mask", "gumbel_tau10"),
}


def page() -> str:
    """docs/gallery.md with today's outputs between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    for name, words in OUTPUTS.items():
        lines = sdtps(*words).replace(str(ROOT), ".").rstrip().splitlines()
        shown = [line.rstrip() for line in lines[:LINES]] + ["..."] * (len(lines) > LINES)
        block = "\n".join([f"<!-- {name} -->", "```", f"$ sdtps {' '.join(words)}", *shown, "```"])
        text = re.sub(
            rf"<!-- {name} -->\n```\n.*?\n```", lambda _, block=block: block, text, flags=re.S
        )
    return text


if __name__ == "__main__":
    GALLERY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pictures(Path(folder))
    PAGE.write_text(page(), encoding="utf-8")
    total = sum(p.stat().st_size for p in GALLERY.glob("*.png"))
    print(f"{PAGE.relative_to(ROOT)} and {GALLERY.relative_to(ROOT)}: {total / 1e3:.0f} kB of pictures")
