"""`python -m lab.vit_photographs RUN`: draw the last layer of a ViT over two photographs, for docs/images.

RUN is a run of `cifar10/vit`. The photographs are scikit-learn's (CC BY 2.0; NOTES.md names the run).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import sklearn.datasets
from PIL import Image

import manyheads

FIGURE = Path("docs/images/vit-photographs.png")
PHOTOGRAPHS = Path(sklearn.datasets.__file__).parent / "images"


def draw(run: str, out: Path) -> None:
    """Draw all heads of the last layer over each photograph, one below the other."""
    model = manyheads.load(run)
    layer = model.model.config.layers - 1
    pictures = [model.attend(PHOTOGRAPHS / name, layers=[layer]).image() for name in ("flower.jpg", "china.jpg")]
    stacked(pictures).quantize(256).save(out, optimize=True)


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """Return a picture with all pictures, one below the other."""
    sheet = Image.new("RGB", (max(each.width for each in pictures), sum(each.height for each in pictures)), "white")
    top = 0
    for each in pictures:
        sheet.paste(each, (0, top))
        top += each.height
    return sheet


if __name__ == "__main__":
    draw(sys.argv[1], FIGURE)
