"""Table 3 of Vaswani 2017 at a small budget: what each choice of the model is worth, on any corpus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from manyheads.models.presets import preset
from manyheads.recipes.run import Run
from manyheads.tasks.translation.run import EMBEDDED, TranslationConfig, translation
from manyheads.training.run_directory import run_status

ABLATE = replace(
    EMBEDDED,
    model={"dropout": 0.1},
    beam=4,
    scored="validation",  # as in the paper; the test data stay unseen
    training=replace(EMBEDDED.training, learning_rate=1.5e-3, steps=400, warmup=100, validate_every=None),
)


def rows(config: TranslationConfig) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """{row: (changes of the model, changes of the run)}, each a step from the base model as in the paper's rows."""
    base = preset(config.preset, "transformer", **config.model)
    width, heads = base.width, base.encoder_heads

    def both(name: str, value: int) -> dict[str, int]:
        return {f"encoder_{name}": value, f"decoder_{name}": value}

    layers, hidden = base.encoder_layers, base.encoder_feed_forward
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {"base": ({}, {})}
    for count in (1, heads // 2, heads * 2, heads * 4):  # the paper: 1, 4, 16, 32 beside 8
        if count and width % count == 0:
            found[f"A heads={count}"] = (both("heads", count), {})
    for size in (width // heads // 4, width // heads // 2):  # 16, 32 beside 64
        if size:
            found[f"B key_width={size}"] = ({"key_width": size}, {})
    for count in (max(1, layers // 3), max(1, layers * 2 // 3), layers * 4 // 3):  # 2, 4, 8 beside 6
        found[f"C layers={count}"] = (both("layers", count), {})
    for size in (width // 2, width * 2):
        found[f"C width={size}"] = ({"width": size}, {})
    for size in (hidden // 2, hidden * 2):
        found[f"C feed_forward={size}"] = (both("feed_forward", size), {})
    for rate in (0.0, 0.2):
        found[f"D dropout={rate}"] = ({"dropout": rate}, {})
    for share in (0.0, 0.2):
        found[f"D smoothing={share}"] = ({}, {"smoothing": share})
    found["E learned positions"] = ({"positions": "learned"}, {})
    return found


def ablate(config: TranslationConfig = ABLATE, *, run: Run) -> str | dict[str, Any] | None:
    """manyheads train translation/ablate [data=CORPUS] [training.steps=N]

    A small run for every row, each resumable in a directory of its own below --out, and the table of validation
    perplexity and BLEU. At this budget only large effects show; equal rows are equal within a seed's noise.
    """
    if run.init is not None:
        raise ValueError(f"{run.recipe} trains a new model for every row: leave --init out")
    if run.dry_run:
        return {"rows": list(rows(config)), "each": translation(config, run=run)}
    lines = [f"{'row':24} {'parameters':>12} {'perplexity':>11} {'BLEU':>7} {'seconds':>8}"]
    for name, (model, settings) in rows(config).items():
        out = run.out / name.replace(" ", "-").replace("=", "-")
        changes = {**{f"model.{key}": value for key, value in model.items()}, **settings}
        row = replace(run, out=out, resume=run_status(out) != "none", whole=run, overrides=run.overrides | changes)
        result = translation(replace(config, model={**config.model, **model}, **settings), run=row)
        if result is None:  # stopped by --max-minutes: the same command goes on
            return None
        metrics = result["metrics"]
        lines.append(
            f"{name:24} {result['parameters']:12,} {metrics['perplexity']['value']:11.3f} "
            f"{metrics['bleu_13a']['value']:7.2f} {result['wall_seconds']:8.0f}"
        )
    table = "\n".join(lines)
    (run.out / "table.txt").write_text(table + "\n", encoding="utf-8")
    return table
