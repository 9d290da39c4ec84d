"""Gradient norm of each layer at the start of training, for models that lack a part.

python -m papers.ablations gradients [key=value ...] --out gradients.png

The settings are those of the recipe `translation/parts`, but with 12 + 12 layers and, without `data`, the built-in
corpus. The loss is that of one batch, in training mode.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import torch
from torch import nn

from manyheads.analysis.drawing import HUES, new_figure, save
from manyheads.core.runtime import prepare
from manyheads.files import write_json
from manyheads.models.transformer import Transformer
from manyheads.runs.options import Run
from manyheads.runs.overrides import apply, from_arguments, from_mapping
from papers.ablations.recipes import PARTS, RowConfig
from papers.ablations.run import RowTranslation, rows_of
from papers.command import about

GRADIENTS = replace(PARTS, vocabulary=600, model={**PARTS.model, "encoder_layers": 12, "decoder_layers": 12})
STACKS = ("encoder", "decoder")
Norms = dict[str, list[float]]  # gradient norm of each block, from the first, by stack


def gradient_norms(config: RowConfig) -> Norms:
    """Return the norm of the gradient by the weights of each block, for the first batch of the first epoch."""
    compute = prepare("float32", config.threads)
    with tempfile.TemporaryDirectory() as folder, compute.settings():
        task = RowTranslation(config, Run("translation/parts", Path(folder)))
        torch.manual_seed(config.training.seed)
        job = task.build(task.data().read(), compute)
        model = job.model.train()
        assert isinstance(model, Transformer)
        job.objective.loss(job.objective.batches(0)[0]).mean.backward()
    return {name: [_norm(block) for block in getattr(model, name).blocks] for name in STACKS}


def _norm(block: nn.Module) -> float:
    return float(nn.utils.get_total_norm([p.grad.double() for p in block.parameters() if p.grad is not None]))


def draw(rows: Mapping[str, Norms], out: Path) -> None:
    """Draw the gradient norms of each row over the layers of the encoder and of the decoder."""
    figure = new_figure(9, 4)
    axes = figure.subplots(1, 2, sharey=True)
    styles = cycle([(color, line) for line in ("-", "--") for color in HUES])
    for (name, norms), (color, line) in zip(rows.items(), styles, strict=False):
        for axis, stack in zip(axes, STACKS, strict=True):
            axis.plot(range(1, len(norms[stack]) + 1), norms[stack], line, color=color, marker=".", label=name)
    for axis, stack in zip(axes, STACKS, strict=True):
        axis.set(title=stack, xlabel="layer", yscale="log")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("gradient norm")
    axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    save(figure, out)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser("python -m papers.ablations gradients", description=about(__doc__))
    parser.add_argument("settings", metavar="key=value", nargs="*", help="settings of the recipe translation/parts")
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="picture (.png, .svg or .pdf)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the norms to this file")
    options = parser.parse_intermixed_args(arguments)
    settings = from_arguments(options.settings)
    config = apply(GRADIENTS, settings)
    rows = rows_of(config, {setting.key: None for setting in settings})
    norms = {name: gradient_norms(apply(config.base, from_mapping(changes))) for name, changes in rows.items()}
    draw(norms, options.out)
    if options.json is not None:
        write_json(options.json, {"settings": options.settings, "rows": norms})
    for name, found in norms.items():
        shown = "   ".join(f"{stack} {found[stack][0]:.2g} to {found[stack][-1]:.2g}" for stack in STACKS)
        print(f"{name:16} first to last layer: {shown}")
