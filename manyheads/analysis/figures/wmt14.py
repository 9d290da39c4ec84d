"""The published WMT14 table, kept as reference data, and the arithmetic of its training-cost column.

The paper multiplies training time, devices and their sustained float32 speed (section 6.1): 9.5 TFLOPS for a P100, not
its 18.7 in half precision. Compared with it are the matrix products of all steps, counted on our modules: batches of
about 25,000 source and 25,000 target tokens (section 5.1), 100,000 steps of the base and 300,000 of the big model
(section 5.2).
"""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any

from manyheads.analysis import costs


def table() -> dict[str, Any]:
    """Return the table: source, rows (model, BLEU and training FLOPs by language pair), hardware and batches."""
    return json.loads(files("manyheads.analysis.figures").joinpath("wmt14.json").read_text(encoding="utf-8"))


def training_cost(preset: str) -> dict[str, Any] | None:
    """Return devices x speed x time of a published row and the printed figure; None for presets outside the table.

    `agrees` is true if both are equal when rounded to two digits. `counted` holds the FLOPs of the matrix products
    alone.
    """
    reference = table()
    for row in reference["rows"]:
        if row.get("preset") == preset:
            hardware, published = reference["hardware"], row["flops"]["en-de"]
            computed = hardware["devices"] * hardware["tflops"] * 1e12 * row["hours"] * 3600
            name = f"{hardware['devices']} {hardware['name']} x {hardware['tflops']} TFLOPS"
            digits = 1 - math.floor(math.log10(computed))
            return {
                "source": reference["source"],
                "arithmetic": f"{name} x {row['hours']} h",
                "flops": computed,
                "published": published,
                "counted": counted(preset, row["steps"] * reference["batch_tokens"]),
                "agrees": round(computed, digits) == published,
                "bleu": row["bleu"],
            }
    return None


def counted(preset: str, target_tokens: int) -> float:
    """Return the FLOPs of the matrix products in training a preset.

    target_tokens  number of target tokens; the number of source tokens is the same
    """
    per_token: float = costs.flops(costs.preset_model(preset))["forward_per_token"]
    return costs.TRAINING_PASSES * per_token * target_tokens


def compared() -> dict[str, Any]:
    """Return the whole table, with our arithmetic (`training_cost`) in the rows of the Transformer."""
    reference = table()
    for row in reference["rows"]:
        if "preset" in row:
            row["computed"] = training_cost(row["preset"])
    return reference
