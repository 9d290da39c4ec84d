"""`manyheads draw`."""

from __future__ import annotations

import argparse
from pathlib import Path

from manyheads.cli.loading import model_for
from manyheads.cli.output import check_file
from manyheads.cli.parser import MODEL, Verbs, whole
from manyheads.errors import UserError

SUFFIXES = (".png", ".svg")
FIGURES = {  # tasks/images/figures.py draws them
    "arrows": "of a non-local net, from one position of an image or a clip to the 20 where it looks most",
    "centers": "of attention by quadratic positions, where each head looks: each layer, or one over the epochs",
    "channels": "of squeeze-and-excitation, how much each channel counts, for each class",
    "maps": "of attention as convolution, the mean map of each head",
}


def add(verbs: Verbs) -> None:
    verb = verbs.add("draw", _draw, "draw a figure of a paper from a model of images")
    verb.add_argument("figure", choices=FIGURES, metavar="FIGURE",
                      help="; ".join(f"{name}: {about}" for name, about in FIGURES.items()))  # fmt: skip
    verb.add_argument("model", metavar=MODEL[0], help=MODEL[1])
    verb.add_argument("rest", nargs="*", metavar="INPUT",
                      help="channels, maps: a folder of class folders, a table of images, or image files; arrows: an "
                      "image, an animation or a folder of frames; centers: none")  # fmt: skip
    verb.add_argument("--out", type=Path, metavar="FILE", help="a picture: .png or .svg (default: FIGURE.png)")
    verb.add_argument("--at", type=_place, metavar="[T,]Y,X",
                      help="arrows, maps: the position that looks, a pixel of the image at the size that the "
                      "model sees, in a clip of the T-th frame drawn, from 0 (default: its middle)")  # fmt: skip
    verb.add_argument("--layer", type=int, metavar="N",
                      help="from 0, or negative from the end. arrows, channels: that layer (default: the last, of a "
                      "network or of each stage); centers: that one over the epochs that training.keep_every "
                      "kept")  # fmt: skip
    verb.add_argument("--images", type=whole(1, 10**9), metavar="N",
                      help="channels, maps: of a data set so many, evenly spaced (default: 1000)")  # fmt: skip
    verb.add_argument("--frames", type=whole(1, 64), metavar="N",
                      help="arrows: of a clip so many, evenly spaced (default: 8)")  # fmt: skip


def _place(text: str) -> tuple[int, ...]:
    try:
        place = tuple(int(number) for number in text.split(","))
    except ValueError:
        place = ()
    if len(place) not in (2, 3):
        raise argparse.ArgumentTypeError(f"expected Y,X or, in a clip, T,Y,X such as 0,12,20, got {text!r}")
    return place


def _draw(options: argparse.Namespace) -> None:
    out: Path = options.out or Path(f"{options.figure}.png")
    check_file(out, SUFFIXES, "a figure is a picture: expected a name that ends in .png or .svg")
    predictor = model_for("attend", options.model)
    if getattr(predictor, "reads", None) != "images":
        raise UserError(f"{options.model}: figures are drawn of models of images: use it with manyheads attend")
    from manyheads.tasks.images.figures import draw

    names = ("at", "layer", "images", "frames")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    draw(predictor, options.figure, options.rest, out, **given)
    print(out)
