"""Growth of language models: the number of parameters of published models, by the month of publication.

The parameters are counted on the modules of our presets. Transformer big has 0.2 billion parameters. Three years later,
GPT-3 has about 800 times that number (175 billion).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from manyheads.analysis import costs
from manyheads.analysis.drawing import save
from manyheads.errors import extra


class Size(NamedTuple):
    """Published model: month such as "2017-06", name of its preset, kind of input, and number of parameters."""

    month: str
    preset: str
    reads: str
    parameters: int


# Month of a paper's first version on arXiv. For GPT and GPT-2, it is the month of OpenAI's announcement.
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
    """Return the number of parameters of all published models, in order of publication. No weights are allocated."""
    return [
        Size(month, preset, reads, sum(costs.parameters(costs.preset_model(preset)).values()))
        for month, preset, reads in PUBLISHED
    ]


def draw(found: list[Size], path: str | Path) -> None:
    """Draw the number of parameters of each model over its month of publication, on a logarithmic scale."""
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
