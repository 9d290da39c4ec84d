"""Table 3 of Vaswani 2017 at a small budget: what each choice of the model is worth, on any corpus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from manyheads.models.presets import PRESETS, full_name
from manyheads.recipes.run import Run
from manyheads.tasks.translation.recipes import TranslationConfig
from manyheads.tasks.translation.run import train as train_translator
from manyheads.training.ranks import here
from manyheads.training.run_directory import run_status


def rows(config: TranslationConfig) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """{row: (changes of the model, changes of the run)}, each a step from the base model as in the paper's rows."""
    base = {**PRESETS[full_name(config.preset, "transformer")], **config.model}
    width, heads = base["width"], base["encoder_heads"]

    def both(name: str, value: int) -> dict[str, int]:
        return {f"encoder_{name}": value, f"decoder_{name}": value}

    layers, hidden = base["encoder_layers"], base["encoder_feed_forward"]
    changes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {"base": ({}, {})}
    for count in (1, heads // 2, heads * 2, heads * 4):  # the paper: 1, 4, 16, 32 beside 8
        if count and width % count == 0:
            changes[f"A heads={count}"] = (both("heads", count), {})
    for size in (width // heads // 4, width // heads // 2):  # 16, 32 beside 64
        if size:
            changes[f"B key_width={size}"] = ({"key_width": size}, {})
    for count in (max(1, layers // 3), max(1, layers * 2 // 3), layers * 4 // 3):  # 2, 4, 8 beside 6
        changes[f"C layers={count}"] = (both("layers", count), {})
    for size in (width // 2, width * 2):
        changes[f"C width={size}"] = ({"width": size}, {})
    for size in (hidden // 2, hidden * 2):
        changes[f"C feed_forward={size}"] = (both("feed_forward", size), {})
    for rate in (0.0, 0.2):
        changes[f"D dropout={rate}"] = ({"dropout": rate}, {})
    for share in (0.0, 0.2):
        changes[f"D smoothing={share}"] = ({}, {"smoothing": share})
    changes["E learned positions"] = ({"positions": "learned"}, {})
    return changes


def train(config: TranslationConfig, run: Run) -> str | dict[str, Any] | None:
    """A small run for every row, and the table of them."""
    if run.dry_run:
        return {"rows": list(rows(config)), "each": train_translator(config, run)}
    lines = [f"{'row':24} {'parameters':>12} {'perplexity':>11} {'BLEU':>7} {'seconds':>8}"]
    for name, (model, settings) in rows(config).items():
        out = run.out / name.replace(" ", "-").replace("=", "-")
        changes = {**{f"model.{key}": value for key, value in model.items()}, **settings}
        row = replace(run, out=out, resume=run_status(out) != "none", whole=run, overrides={**run.overrides, **changes})
        result = train_translator(replace(config, model={**config.model, **model}, **settings), row)
        if result is None:  # stopped by --max-minutes: the same command goes on
            return None
        metrics = result["metrics"]
        lines.append(
            f"{name:24} {result['parameters']:12,} {metrics['perplexity']['value']:11.3f} "
            f"{metrics['bleu_13a']['value']:7.2f} {result['wall_seconds']:8.0f}"
        )
    table = "\n".join(lines)
    if here().first:
        (run.out / "table.txt").write_text(table + "\n", encoding="utf-8")
    return table
