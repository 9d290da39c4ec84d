"""The tables of docs/papers/biases.md: each student and its teacher, as the mean over the seeds."""

from __future__ import annotations

import re
from statistics import mean, stdev
from typing import Any

from lab import results_keep
from papers.biases.recipes import TEACHERS

SENTENCES = {
    "accuracy": "2 modifiers", "accuracy_4_modifiers": "4 modifiers", "accuracy_8_modifiers": "8 modifiers",
    "accuracy_4_attractors": "4 attractors", "shared_errors_8_modifiers": "shared errors, 8 modifiers",
}  # fmt: skip
DIGITS = {
    "top1": "as trained", "top1_moved": "moved", "top1_smaller": "smaller",
    "shared_errors_moved": "shared errors, moved",
}  # fmt: skip
ROWS = {
    "agreement": dict(zip(TEACHERS, (
        "LSTM, the teacher", "Transformer without a teacher", "Transformer, taught by the LSTM",
        "Transformer, taught by the Transformer",
    ), strict=True)),
    "moved-digits": dict(zip(TEACHERS, (
        "ResNet, the teacher", "ViT without a teacher", "ViT, taught by the ResNet", "ViT, taught by the ViT",
    ), strict=True)),
}  # fmt: skip


def sentences_table() -> str:
    """Return the accuracy of each row of `agreement` on the test sets of sentences."""
    return _table("agreement", SENTENCES)


def digits_table() -> str:
    """Return the top1 of each row of `moved-digits` on the test sets of digits."""
    return _table("moved-digits", DIGITS)


def _table(run: str, columns: dict[str, str]) -> str:
    kept = results_keep.kept()
    lines = [
        f"| `{run}` | parameters | {' | '.join(columns.values())} |",
        f"| --- | {'--: | ' * (1 + len(columns))}".rstrip(),
    ]
    seeds = 0
    for name, shown in ROWS[run].items():
        row = re.sub(r"\W+", "-", name)
        records = [record for key, record in kept.items() if re.fullmatch(rf"{run}-\d+-{row}", key)]
        cells = [
            _spread([r["metrics"][metric]["value"] for r in records if metric in r["metrics"]]) for metric in columns
        ]
        seeds = max(seeds, len(records))
        lines.append(f"| {shown} | {records[0]['parameters']:,} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Mean and standard deviation of {seeds} seeds."])


def _spread(values: list[Any]) -> str:
    if not values:
        return ""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


PARTS = (sentences_table, digits_table)
