"""Draw the pictures of pages that show records, if there are any: `python -m lab.results_plot`.

docs/images/cifar10-widths.png compares attention and convolution (figure 5 of Ramachandran et al. 2019): accuracy
against parameters and against FLOPs per image, for networks of three blocks and several widths. Bars are 95%
confidence intervals for the number of test images.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from lab.colors import BLUE, GREEN, MODEL_COLORS, VERMILION
from lab.records import records
from papers.recipes import RECIPES
from papers.universal import length_curve

COMPARED = {"cifar10/resnet": "3 x 3 convolution", "cifar10/local-attention": "5 x 5 self-attention"}
TRAINING_PASSES = 3  # a backward pass costs two forward ones
FIGURE = Path("docs/images/cifar10-widths.png")
MEMORY = Path("docs/images/corpus-memory.png")
HUNGER, HALTING = Path("docs/images/data-hunger.png"), Path("docs/images/universal-halting.png")
DIRECTIONS, PIXELS = Path("docs/images/directions.png"), Path("docs/images/pixels.png")
READINGS = {
    "bidirectional": "both directions at once", "left_to_right": "from left to right", "two_lstms": "two LSTMs",
    "words_alone": "words alone",
}  # fmt: skip
HUNGRY = {"cifar10/resnet": "ResNet-20", "cifar10/vit": "a small ViT"}


def forward_flops(record: dict[str, Any]) -> float:
    """Of one image, as the run counted them."""
    return float(record["flops"]) / record["target_tokens"] / TRAINING_PASSES


def points() -> dict[str, list[tuple[int, float, float, float]]]:
    """Of each kind, the runs at several widths: parameters, FLOPs of an image, accuracy, half of its interval."""
    by_recipe: dict[str, list[tuple[int, float, float, float]]] = {}
    for record in records():
        settings = record["overrides"]
        small = settings.get("model.depths") == [1, 1, 1]  # teachers have more
        if record["recipe"] in COMPARED and small and "model.image_size" not in settings:
            right, images = record["metrics"]["top1"]["value"], record["data"]["items"]["test"]
            half = 1.96 * (right * (1 - right) / images) ** 0.5
            by_recipe.setdefault(record["recipe"], []).append(
                (record["parameters"], forward_flops(record), right, half)
            )
    return {recipe: sorted(by_recipe[recipe]) for recipe in COMPARED if recipe in by_recipe}


def draw(out: Path) -> Path:
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for (recipe, at), marker in zip(points().items(), "os", strict=False):
        for axis, column, scale in ((axes[0], 0, 1e3), (axes[1], 1, 1e6)):
            axis.errorbar(
                [point[column] / scale for point in at], [point[2] for point in at], [point[3] for point in at],
                marker=marker, color=MODEL_COLORS[recipe], capsize=3, label=COMPARED[recipe],
            )  # fmt: skip
    for axis, name in zip(axes, ("thousand parameters", "million FLOPs an image"), strict=True):
        axis.set(xscale="log", xlabel=name)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("top-1 on CIFAR-10's test images")
    axes[0].legend(frameon=False)
    figure.savefig(out, dpi=120)
    pyplot.close(figure)
    return out


def of_claim(letter: str) -> list[dict[str, Any]]:
    """The records of a claim's runs (`lab/evidence/runs.toml`)."""
    return [record for record in records() if record.get("evidence", {}).get("claim") == letter]


def hunger() -> dict[str, list[tuple[int, float]]]:
    """Of each kind, how many images it learnt from, and its top-1."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in of_claim("e"):
        point = record["data"]["items"]["train"], record["metrics"]["top1"]["value"]
        curves.setdefault(record["recipe"], []).append(point)
    return {recipe: sorted(curves[recipe]) for recipe in HUNGRY if recipe in curves}


def draw_hunger(out: Path) -> Path | None:
    """Draw accuracy against the number of training images. Return None without records."""
    from matplotlib.figure import Figure

    if not (curves := hunger()):
        return None
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    for (recipe, points), marker in zip(curves.items(), "os", strict=False):
        axis.plot(*zip(*points, strict=True), marker=marker, color=MODEL_COLORS[recipe], label=HUNGRY[recipe])
    axis.set(xscale="log", xlabel="images to learn from", ylabel="top-1 on CIFAR-10's test images")
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False)
    figure.savefig(out, dpi=120)
    return out


def readings() -> list[tuple[int, dict[str, float]]]:
    """Draw the entity F1 of features of three encoders against the steps of pretraining."""
    usual = RECIPES["reading"].config.training.steps
    return sorted(
        (record["overrides"].get("training.steps", usual), {n: record["readings"][n]["entity_f1"] for n in READINGS})
        for record in records()
        if record["recipe"] == "reading"
    )


def draw_readings(out: Path) -> Path | None:
    """Draw entity F1 over the steps of pretraining. Return None without records."""
    from matplotlib.figure import Figure

    if not (points := readings()):
        return None
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    for (name, label), marker in zip(READINGS.items(), "os^.", strict=True):
        axis.plot([steps for steps, _ in points], [scores[name] for _, scores in points], marker=marker, label=label)
    axis.set_xscale("log")
    axis.set_xticks([], minor=True)
    axis.set_xticks([steps for steps, _ in points], [f"{steps:,}" for steps, _ in points])
    axis.set(xlabel="steps of pretraining", ylabel="entity F1 on CoNLL-2003's validation data", ylim=0)
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False)
    figure.savefig(out, dpi=120)
    return out


def draw_halting(out: Path) -> Path | None:
    """Draw the mean steps of positions over the length of the input. Return None without records."""
    if not (runs := of_claim("j")):
        return None
    length_curve.draw([(record["recipe"], record) for record in runs], out)
    return out


def draw_pixels(out: Path) -> Path | None:
    """Draw validation accuracy over epochs of a ViT that continues with small or with large images.

    Each line is the mean of the seeds, with their range. Return None without records.
    """
    from matplotlib.figure import Figure

    runs: dict[str, list[list[float]]] = {}
    for record in of_claim("z"):
        accuracies = [epoch["validation"]["top1"] for epoch in record["by_epoch"]]
        runs.setdefault(record["evidence"]["run"].rpartition("-")[0], []).append(accuracies)
    if not runs:
        return None
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axis = figure.subplots()
    start = len(runs["pixels-start"][0])
    for name, label, color in (
        ("start", "16 pixels", GREEN),
        ("16", "16 pixels again", BLUE),
        ("32", "32 pixels", VERMILION),
    ):
        curves = [*zip(*runs[f"pixels-{name}"], strict=True)]  # of each epoch, the accuracies of all seeds
        epochs = [(0 if name == "start" else start) + epoch for epoch in range(1, len(curves) + 1)]
        axis.plot(epochs, [mean(values) for values in curves], marker=".", color=color, label=label)
        axis.fill_between(
            epochs, [min(v) for v in curves], [max(v) for v in curves], color=color, alpha=0.2, linewidth=0
        )
    axis.set(xlabel="epochs of 10,000 images", ylabel="top-1 on validation images")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(out, dpi=120)
    return out


def draw_memory(out: Path) -> Path | None:
    """Draw the memory of a training on a large corpus over time. Return None without a record."""
    from matplotlib.figure import Figure

    record = next((bench for bench in records("bench") if bench.get("bench") == ["large-corpus"]), None)
    if record is None:
        return None
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axis = figure.subplots()
    minutes = [line["seconds"] / 60 for line in record["memory"]]
    for name, label in (("RssAnon", "its own"), ("RssFile", "of mapped files")):
        axis.plot(minutes, [line[name] / 1024 for line in record["memory"]], label=label)
    axis.axhline(record["disk_bytes"] / 2**30, color="grey", linestyle=":", label="the corpus, on disk")
    axis.set(yscale="log", xlabel="minutes", ylabel="GiB resident")
    axis.grid(alpha=0.3, which="both")
    axis.legend(frameon=False)
    figure.savefig(out, dpi=120)
    return out


if __name__ == "__main__":
    drawn = draw(FIGURE), draw_hunger(HUNGER), draw_readings(DIRECTIONS), draw_halting(HALTING), draw_memory(MEMORY)
    for path in filter(None, (*drawn, draw_pixels(PIXELS))):
        print(path)
