"""Figures and theorem 1 of Cordonnier, Loukas & Jaggi 2020, as described in docs/papers/conv-attention.md.

python -m papers.conv_attention theorem                          error of attention as a convolution
python -m papers.conv_attention centers RUN --out centers.png    center of each head (figures 3 and 4)
python -m papers.conv_attention maps RUN IMAGES --out maps.png   mean map of each head (figures 5 and 6)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import monotonic

import manyheads
from papers.command import image_model, pixel, run
from papers.conv_attention import centers, theorem


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m papers.conv_attention", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("theorem", help="compare random convolutions with attention that imitates them")
    add.add_argument("--kernels", type=int, nargs="+", default=[3, 5, 7], help="kernel sizes; 3 means 3 x 3")
    add.add_argument("--alphas", type=float, nargs="+", default=theorem.ALPHAS, help="values of the sharpness")
    add.add_argument("--size", type=int, default=16, help="height and width of the images in pixels")
    add.add_argument("--channels", type=int, default=4, help="number of channels")
    add.add_argument("--seed", type=int, default=1, help="seed of the random kernels and images")
    add.add_argument("--out", type=Path, help="folder for error.png and result.json")
    add.set_defaults(command=_theorem)
    add = commands.add_parser("centers", help="draw the center of each head of attention with quadratic positions")
    add.add_argument("model", metavar="RUN")
    add.add_argument("--layer", type=int, help="draw this layer over the epochs that training.keep_every=1 has kept")
    add.add_argument("--out", type=Path, default=Path("centers.png"), help="picture (.png, .svg or .pdf)")
    add.set_defaults(command=_centers)
    add = commands.add_parser("maps", help="draw the mean attention map of each head")
    add.add_argument("model", metavar="RUN")
    add.add_argument("inputs", nargs="+", metavar="IMAGES", help="a folder of class folders, a table, or image files")
    add.add_argument("--images", type=int, default=1000, help="maximum number of images, evenly spaced")
    add.add_argument("--at", type=pixel, metavar="Y,X", help="query, a pixel of the resized image")
    add.add_argument("--out", type=Path, default=Path("maps.png"), help="picture (.png, .svg or .pdf)")
    add.set_defaults(command=_maps)
    options = parser.parse_args(arguments)
    options.command(options)


def _theorem(options: argparse.Namespace) -> None:
    began = monotonic()
    measured = theorem.convolution_errors(
        options.kernels, options.alphas, size=options.size, channels=options.channels, seed=options.seed
    )
    print(measured)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        theorem.write_record(measured, options.out, seed=options.seed, seconds=monotonic() - began)
        theorem.draw(measured, options.out / "error.png")


def _centers(options: argparse.Namespace) -> None:
    if options.layer is None:
        model = manyheads.load(options.model)
        centers.draw_centers(centers.learned_centers(model.model), options.out, title=model.path.name)
    else:
        centers.draw_epochs(Path(options.model), options.layer, options.out)
    print(options.out)


def _maps(options: argparse.Namespace) -> None:
    encoder = image_model(options.model)
    maps = centers.mean_maps_of(encoder, options.inputs, options.images, options.at)
    centers.draw_maps(maps, options.out, title=encoder.path.name)
    print(options.out)


if __name__ == "__main__":
    raise SystemExit(run(main))
