"""Gradient norm of each layer at the start of training, for models that lack a part.

python -m papers.ablations gradients [key=value ...] --out gradients.png

The settings are those of the recipe `translation/parts`, but with 12 + 12 layers and, without `data`, the built-in
corpus. The loss is computed on one batch, in training mode.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from manyheads.analysis.drawing import HUES, new_figure, save
from manyheads.cli.output import check_file
from manyheads.core.runtime import prepare
from manyheads.files import write_json
from manyheads.models.transformer import Transformer
from manyheads.runs.ablation import Rows
from manyheads.runs.options import Run
from manyheads.runs.overrides import apply, from_arguments, from_mapping
from manyheads.tasks.translation.objective import TranslationObjective
from papers.ablations.parts import MODELS
from papers.ablations.recipes import PARTS, ROWS, RowConfig
from papers.ablations.run import RowTranslation, rows_of
from papers.command import about

GRADIENTS = replace(PARTS, vocabulary=600, model={**PARTS.model, "encoder_layers": 12, "decoder_layers": 12})
STACKS = ("encoder", "decoder")
STYLES = dict(zip(ROWS, [(color, line) for line in ("-", "--") for color in HUES], strict=False))  # line of each row
Norms = dict[str, list[float]]  # gradient norm of each block, from the first, by stack


def gradient_norms(config: RowConfig, rows: Rows) -> dict[str, Norms]:
    """Return the norm of the gradient by the weights of each block, for the first batch of the first epoch.

    All rows have the same batch, and the same initial weights of their common parts.
    """
    compute, norms = prepare("float32", config.threads), {}
    with tempfile.TemporaryDirectory() as folder, compute.settings():
        task = RowTranslation(config, Run("translation/parts", Path(folder)))
        task.planned_model()  # An invalid setting is reported before any data are read.
        objective = task.build(task.data().read(), compute).objective
        assert isinstance(objective, TranslationObjective)
        batch, full = objective.batches(0)[0], objective.model
        assert isinstance(full, Transformer)
        for name, changes in rows.items():
            row = apply(config, from_mapping(changes))
            torch.manual_seed(config.training.seed)
            sizes = {key: value for key, value in row.model.items() if key in vars(full.config)}
            model = MODELS[row.without](replace(full.config, **sizes)).to(compute.device).train()
            replace(objective, model=model).loss(batch).mean.backward()
            stacks = zip(STACKS, (model.encoder, model.decoder), strict=True)
            norms[name] = {stack: [_norm(block) for block in blocks.blocks] for stack, blocks in stacks}
    return norms


def _norm(block: nn.Module) -> float:
    # Without normalization, the squares of the gradients are too large for float32.
    return float(nn.utils.get_total_norm([p.grad.double() for p in block.parameters() if p.grad is not None]))


def draw(rows: Mapping[str, Norms], out: Path) -> None:
    """Draw the gradient norms of each row over the layers of the encoder and of the decoder."""
    figure = new_figure(9, 4)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, stack in zip(axes, STACKS, strict=True):
        for name, norms in rows.items():
            color, line = STYLES[name]
            axis.plot(range(1, len(norms[stack]) + 1), norms[stack], line, color=color, marker=".", label=name)
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
    for option, file, *suffixes in (("--out", options.out, ".png", ".svg", ".pdf"), ("--json", options.json, ".json")):
        if file is not None:
            check_file(file, suffixes, f"expected a file name that ends in {' or '.join(suffixes)}", option)
    norms = gradient_norms(config.base, rows_of(config, {setting.key: None for setting in settings}))
    draw(norms, options.out)
    if options.json is not None:
        write_json(options.json, {"settings": options.settings, "rows": norms})
    for name, found in norms.items():
        shown = "   ".join(f"{stack} {found[stack][0]:.2g} to {found[stack][-1]:.2g}" for stack in STACKS)
        print(f"{name:16} first to last layer: {shown}")
