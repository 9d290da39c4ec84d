"""Growth of models: parameters of presets, counted on their modules, by the month of their paper.

transformer/big has 0.2 billion; three years later, gpt3/175b has 800 times that number.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from manyheads.analysis import costs
from manyheads.analysis.drawing import save
from manyheads.errors import extra


class Size(NamedTuple):
    """Month of publication such as "2017-06", preset, kind of input, and number of parameters."""

    month: str
    preset: str
    reads: str
    parameters: int


# months of arXiv's first version; for GPT and GPT-2 of OpenAI's announcements
PUBLISHED = (
    ("2017-06", "transformer/big", "text"),
    ("2018-06", "gpt/117m", "text"),
    ("2018-10", "bert/large-uncased", "text"),
    ("2019-02", "gpt2/1558m", "text"),
    ("2020-05", "gpt3/175b", "text"),
    ("2020-10", "vit/h14", "images"),
    ("2020-12", "deit/b16", "images"),
)


def sizes() -> list[Size]:
    """Return the sizes of all models in order. No weights are allocated."""
    return [
        Size(month, preset, reads, sum(costs.parameters(costs.preset_model(preset)).values()))
        for month, preset, reads in PUBLISHED
    ]


def draw(found: list[Size], path: str | Path) -> None:
    """Draw parameters over time, on a logarithmic scale."""
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for reads, marker in (("text", "o"), ("images", "s")):
        shown = [size for size in found if size.reads == reads]
        years = [int(size.month[:4]) + (int(size.month[5:]) - 0.5) / 12 for size in shown]
        axes.plot(years, [size.parameters for size in shown], marker, label=reads)
        for year, size in zip(years, shown, strict=True):
            axes.annotate(size.preset, (year, size.parameters), (6, 4), textcoords="offset points", fontsize=8)
    axes.set(yscale="log", ylabel="parameters", ylim=(5e7, 5e11), xlim=(2017, 2022), xticks=range(2017, 2023))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    save(figure, path)
