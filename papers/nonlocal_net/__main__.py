"""Clips and figure 3 of Wang, Girshick, Gupta & He 2018, as described in docs/papers/nonlocal.md.

python -m papers.nonlocal_net moving-digits [key=value ...] --out RUN     train on clips of moving digits
python -m papers.nonlocal_net evaluate RUN                                loss and accuracy on the test clips of the run
python -m papers.nonlocal_net RUN CLIP --at T,Y,X --out arrows.png        draw figure 3

The arrows lead from one position of an image or a clip to the 20 positions with the largest attention weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from manyheads.cli.output import print_scores
from papers.command import about, image_model, pixel, run, train
from papers.nonlocal_net import arrows
from papers.nonlocal_net.clips import read_clip
from papers.nonlocal_net.recipes import RECIPES
from papers.nonlocal_net.task import load


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["evaluate"]:
        return _evaluate(arguments[1:])
    if "--resume" in arguments or {*RECIPES} & {*arguments}:
        return train(RECIPES, arguments)
    parser = argparse.ArgumentParser(prog="python -m papers.nonlocal_net", description=about(__doc__))
    parser.add_argument("model", metavar="RUN", help="run of a network with non-local blocks")
    parser.add_argument("clip", metavar="CLIP", help="an image, an animation or a folder of frames")
    parser.add_argument("--at", type=pixel, metavar="[T,]Y,X", help="pixel of the resized image (default: the middle)")
    parser.add_argument("--layer", type=int, default=-1, help="index of the non-local block (default: the last)")
    parser.add_argument("--frames", type=int, default=8, help="maximum number of frames, evenly spaced")
    parser.add_argument("--out", type=Path, default=Path("arrows.png"), help="picture (.png, .svg or .pdf)")
    options = parser.parse_args(arguments)
    encoder, clip = image_model(options.model), read_clip(options.clip, options.frames)
    pixels = torch.from_numpy(np.stack([encoder.preprocessing.array(frame) for frame in clip.frames], 1))[None]
    pixels = pixels if len(clip.frames) > 1 else pixels[:, :, 0]  # a clip (1, C, T, Y, X), or an image (1, C, Y, X)
    middle = tuple(size // 2 for size in pixels.shape[-2:])
    at = options.at or (middle if pixels.dim() == 4 else (0, *middle))
    with encoder.compute.autocast():
        strongest = arrows.strongest_arrows(encoder.model, pixels.to(encoder.compute.device), at, layer=options.layer)
    title = f"{encoder.path.name}: {Path(options.clip).name}"
    arrows.draw(strongest, options.out, numbers=clip.indices, title=title)
    print(options.out)


def _evaluate(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.nonlocal_net evaluate")
    parser.add_argument("run", metavar="RUN", help="run of the recipe moving-digits")
    print_scores({"test": load(parser.parse_args(arguments).run).outcome().metrics})


if __name__ == "__main__":
    raise SystemExit(run(main))
