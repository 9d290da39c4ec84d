"""The command `manyheads draw`: draw a figure of a vision paper from a trained model."""

from __future__ import annotations

import argparse
from pathlib import Path

from manyheads.cli.loading import model_for
from manyheads.cli.output import check_file
from manyheads.cli.parser import MODEL, Verbs, whole
from manyheads.errors import UserError
from manyheads.files import PICTURES

FIGURES = {  # kinds of figures, which tasks/images/figures.py defines
    "arrows": "of a non-local net: the 20 positions with the largest weights for one position of an image or clip",
    "centers": "of attention by quadratic positions: the center of each head, for each layer or over the epochs",
    "channels": "of squeeze-and-excitation: the weight of each channel for each class",
    "maps": "of attention as convolution: the mean attention map of each head",
}


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "draw",
        _draw,
        "draw a figure of a vision paper from a trained model",
        example="manyheads draw maps runs/cifar10/conv-attention images --out maps.png",
    )
    verb.add_argument("figure", choices=FIGURES, metavar="FIGURE",
                      help="; ".join(f"{name}: {about}" for name, about in FIGURES.items()))  # fmt: skip
    verb.add_argument("model", metavar=MODEL[0], help=MODEL[1])
    verb.add_argument("rest", nargs="*", metavar="INPUT",
                      help="channels, maps: a folder of class folders, a table of images, or image files; arrows: "
                      "an image, an animation or a folder of frames; centers: no input")  # fmt: skip
    verb.add_argument(
        "--out", type=Path, metavar="FILE", help="output picture, .png, .svg or .pdf (default: FIGURE.png)"
    )
    verb.add_argument("--at", type=_place, metavar="[T,]Y,X",
                      help="arrows, maps: the query position, a pixel of the resized image; "
                      "in a clip with the frame, from 0 (default: the middle)")  # fmt: skip
    verb.add_argument("--layer", type=int, metavar="N",
                      help="layer, from 0, or negative from the end. arrows, channels: that layer (default: the"
                           " last, of the "
                      "network or of each stage); centers: that layer over the epochs saved by "
                      "kept")  # fmt: skip
    verb.add_argument("--images", type=whole(1, 10**9), metavar="N",
                      help="channels, maps: number of images, evenly spaced in the data set (default:"
                           " 1000)")  # fmt: skip
    verb.add_argument("--frames", type=whole(1, 64), metavar="N",
                      help="arrows: number of frames, evenly spaced in the clip (default: 8)")  # fmt: skip


def _place(text: str) -> tuple[int, ...]:
    try:
        place = tuple(int(number) for number in text.split(","))
    except ValueError:
        place = ()
    if len(place) not in (2, 3):
        raise argparse.ArgumentTypeError(f"expected Y,X or, in a clip, T,Y,X such as 0,12,20, found {text!r}")
    return place


def _draw(options: argparse.Namespace) -> None:
    out: Path = options.out or Path(f"{options.figure}.png")
    check_file(out, PICTURES, "expected a picture, a name that ends in .png, .svg or .pdf")
    predictor = model_for("attend", options.model)
    if predictor.reads != "images":
        raise UserError(f"{options.model}: expected a model of images. For other models, use manyheads attend")
    from manyheads.tasks.images.figures import draw

    names = ("at", "layer", "images", "frames")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    draw(predictor, options.figure, options.rest, out, **given)
    print(out)
