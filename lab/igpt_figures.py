"""Draw the completions and the linear probe of iGPTs: `python -m lab.igpt_figures DIGITS_RUN MNIST_RUN [--data DIR]`.

docs/images/igpt-completions.png shows the first test digit of each class from 0 to 5, its upper half and four
completions with the seeds 0 to 3 and on; igpt-mnist.png shows the same for MNIST. docs/images/igpt-probe.png shows the
accuracy of logistic regression on the mean state of each layer, as figure 2 of Chen 2020, and on the color ids of all
pixels. The colors of these models are sorted from black to white. The accuracies are stored in lab/results/igpt.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import manyheads
from manyheads.analysis.drawing import HUES
from manyheads.analysis.figures.completions import draw_completions
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.images.source import ImageSource
from manyheads.tasks.embedding import label_scores
from manyheads.tasks.image_writing.objective import batch_of
from manyheads.tasks.image_writing.predictor import ids_of

RECORD, PICTURES = Path("lab/results/igpt.json"), Path("docs/images")
SHOWN, SAMPLES = 6, 4  # number of images, and of completions of each
PROBED = 2000  # maximum number of training images, and of test images, of the linear probe


def completions(writer: Any, test: ImageData, out: Path) -> None:
    """Draw the first image of each of the first classes, its upper half and its completions."""
    chosen = [test.image(test.labels.index(name)) for name in test.names[:SHOWN]]
    palette, found = writer.preprocessing, writer.generate(chosen, samples=SAMPLES)
    ids = [palette.array(image) for image in chosen]
    starts = [[palette.picture(row), palette.picture(row[: len(row) // 2])] for row in ids]
    draw_completions(out, [[*start, *images] for start, images in zip(starts, found, strict=True)])


def layer_means(writer: Any, ids: Any) -> list[Any]:
    """Return the mean state over the pixels of each image, (M, D), for each layer, and after the last norm."""
    stack = writer.model.stack
    modules = [*stack.blocks, stack]
    found: list[list[Any]] = [[] for _ in modules]
    hooks = [
        module.register_forward_hook(lambda module, given, output, rows=rows: rows.append(output.mean(1).numpy()))
        for module, rows in zip(modules, found, strict=True)
    ]
    with torch.inference_mode():
        for start in range(0, len(ids), 64):
            writer.model.hidden(batch_of(writer.model, ids[start : start + 64]).read)
    for hook in hooks:
        hook.remove()
    return [np.concatenate(rows) for rows in found]


def probe(writer: Any, train: ImageData, test: ImageData) -> list[float]:
    """Return the accuracy of the linear probe on the pixels, on the output of each layer, and after the last norm."""
    parts = [part.subset(range(min(len(part), PROBED))) for part in (train, test)]
    ids = [ids_of(writer.preprocessing, part) for part in parts]
    means = zip(*(layer_means(writer, part) for part in ids), strict=True)
    vectors = [tuple(part.astype(np.float32) for part in ids), *means]
    scores = [label_scores(first, parts[0].labels, second, parts[1].labels) for first, second in vectors]
    return [score["probe_accuracy"]["value"] for score in scores]


def bits_by_position(train: Any, test: Any, colors: int) -> float:
    """Return the bits per pixel of color frequencies at each position, with half a count added to each."""
    counts = 0.5 + np.stack([np.bincount(column, minlength=colors) for column in train.T])
    shares = counts / counts.sum(1, keepdims=True)
    return float(-np.log2(shares[np.arange(len(shares)), test]).mean())


def draw_probe(curves: dict[str, list[float]], out: Path) -> None:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for (name, accuracies), color in zip(curves.items(), HUES, strict=False):
        axis.plot(range(1, len(accuracies) - 1), accuracies[1:-1], marker="o", color=color, label=name)
        axis.axhline(accuracies[0], color=color, linestyle=":", label=f"pixels of {name}")
    layers = range(1, max(map(len, curves.values())) - 1)
    axis.set(xlabel="layer whose output is probed", ylabel="accuracy of a linear probe", xticks=layers)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(out, dpi=120)


def main() -> None:
    runs = [Path(word) for word in sys.argv[1:3]]
    data = sys.argv[4] if sys.argv[3:4] == ["--data"] else None
    curves, positions = dict[str, list[float]](), dict[str, float]()
    for name, run, source, picture in zip(
        ("digits", "MNIST"), runs, (None, data), ("igpt-completions.png", "igpt-mnist.png"), strict=False
    ):
        writer, splits = manyheads.load(run), ImageSource(data=source).read()
        assert splits.test is not None
        completions(writer, splits.test, PICTURES / picture)
        curves[name] = probe(writer, splits.train, splits.test)
        ids = [ids_of(writer.preprocessing, part) for part in (splits.train, splits.test)]
        positions[name] = bits_by_position(ids[0], ids[1], len(writer.preprocessing.colors))
        print(name, curves[name], positions[name])
    draw_probe(curves, PICTURES / "igpt-probe.png")
    about = f"logistic regression, at most {PROBED:,} training and test images: color ids, layers, after the last norm"
    record = {"about": about, "probe_accuracy": curves, "bits_per_pixel_by_position": positions}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
