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

GPT3_TOKENS = 300e9  # number of tokens on which each GPT-3 was trained (Brown 2020, table 2.1)
GPT3_LENGTH = 2048  # number of tokens of a training example
# training FLOPs in Brown 2020, table D.1: 6 for each parameter and token
GPT3_FLOPS = {
    "gpt3/125m": 2.25e20, "gpt3/350m": 6.41e20, "gpt3/760m": 1.37e21, "gpt3/1.3b": 2.38e21,
    "gpt3/2.7b": 4.77e21, "gpt3/6.7b": 1.20e22, "gpt3/13b": 2.31e22, "gpt3/175b": 3.14e23,
}  # fmt: skip


class TrainingCost(NamedTuple):
    """Training FLOPs of a GPT-3: the paper's estimate, and the products that our model computes.

    The paper's estimate leaves out the attention scores, which grow with the length of the text. Our count includes
    all of them, because dense kernels compute the masked scores, too.
    """

    preset: str
    parameters: int
    published: float
    counted: float


def gpt3_cost(preset: str) -> TrainingCost:
    """Return the training FLOPs of a GPT-3. No weights are allocated."""
    model = costs.preset_model(preset)
    counted = costs.training_flops(model, GPT3_LENGTH) / GPT3_LENGTH * GPT3_TOKENS
    return TrainingCost(preset, sum(costs.parameters(model).values()), GPT3_FLOPS[preset], counted)


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
