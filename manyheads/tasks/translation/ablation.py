"""Ablation study of the Transformer's architecture: table 3 of Vaswani 2017 with a small training budget."""

from __future__ import annotations

from manyheads.files import JsonObject
from manyheads.models.presets import PRESETS, full_name
from manyheads.runs.ablation import Rows, ablate
from manyheads.runs.options import Run
from manyheads.runs.run import carry_out
from manyheads.tasks.translation.recipes import TranslationConfig
from manyheads.tasks.translation.task import Translation


def rows(config: TranslationConfig) -> Rows:
    """Return the settings of each row of the table. Each row changes one setting of the base model, as in the paper."""
    base = {**PRESETS[full_name(config.preset, "transformer")], **config.model}
    width, heads = base["width"], base["encoder_heads"]

    def both(name: str, value: int) -> dict[str, int]:
        return {f"model.encoder_{name}": value, f"model.decoder_{name}": value}

    layers, hidden = base["encoder_layers"], base["encoder_feed_forward"]
    changes: Rows = {"base": {}}
    # The paper compares 1, 4, 16 and 32 attention heads with the 8 heads of the base model.
    for count in (1, heads // 2, heads * 2, heads * 4):
        if count and width % count == 0:
            changes[f"A heads={count}"] = both("heads", count)
    # The paper compares key widths 16 and 32 with the width 64 of the base model.
    for size in (width // heads // 4, width // heads // 2):
        if size:
            changes[f"B key_width={size}"] = {"model.key_width": size}
    # The paper compares 2, 4 and 8 layers with the 6 layers of the base model.
    for count in (max(1, layers // 3), max(1, layers * 2 // 3), layers * 4 // 3):
        changes[f"C layers={count}"] = both("layers", count)
    for size in (width // 2, width * 2):
        changes[f"C width={size}"] = {"model.width": size}
    for size in (hidden // 2, hidden * 2):
        changes[f"C feed_forward={size}"] = both("feed_forward", size)
    for rate in (0.0, 0.2):
        changes[f"D dropout={rate}"] = {"model.dropout": rate}
    for smoothing in (0.0, 0.2):
        changes[f"D smoothing={smoothing}"] = {"smoothing": smoothing}
    changes["E learned positions"] = {"model.positions": "learned"}
    return changes


def train(config: TranslationConfig, run: Run) -> str | JsonObject | None:
    """Train a small model for every row of the table, and return the table of results."""
    return ablate(
        rows(config),
        config,
        run,
        lambda row, run: carry_out(Translation(row, run)),
        {"perplexity": "perplexity", "bleu_13a": "BLEU"},
    )
