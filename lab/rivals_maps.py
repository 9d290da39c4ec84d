"""Picture of docs/papers/rivals.md: `python -m lab.rivals_maps TEXT TARGET NAME=RUN NAME=RUN ...`.

It shows the cross-attention of several translators for the same sentence and translation. The weights are means over
the heads of a layer, and over the layers of a model; every model reads the target word before the one it writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from manyheads.analysis.maps import AttentionMaps
from manyheads.tasks.loading import load

FIGURE = Path("docs/images/rivals-maps.png")


def draw(maps: dict[str, AttentionMaps], out: Path) -> Path:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(maps), figsize=(4 * len(maps), 4.4), layout="constrained", squeeze=False)
    for axis, (name, found) in zip(axes[0], maps.items(), strict=True):
        layers = found["cross"]
        weights = np.mean([layer.weights[0].mean(0) for layer in layers], axis=0)  # (queries, keys)
        axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        axis.set_xticks(range(weights.shape[1]), layers[0].keys.tokens, rotation=60, ha="right", fontsize=8)
        axis.set_yticks(range(weights.shape[0]), layers[0].queries.tokens, fontsize=8)
        axis.set_title(name, fontsize=10)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)
    return out


def main(arguments: list[str]) -> int:
    text, target, *pairs = arguments
    runs = {name: run for name, _, run in (pair.partition("=") for pair in pairs)}
    print(draw({name: load(run).attend(text, target, axis="cross") for name, run in runs.items()}, FIGURE))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
