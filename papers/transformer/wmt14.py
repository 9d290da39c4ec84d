"""The published WMT14 table of Vaswani 2017, kept as reference data, and the arithmetic of its training-cost column.

The paper computes the cost as training time x number of devices x sustained speed of a device (section 6.1). For a
P100, the speed is 9.5 TFLOPS in float32, not 18.7 TFLOPS in half precision. We compare this cost with the matrix
products of all training steps, counted on our modules. The batches have about 25,000 source and 25,000 target tokens
(section 5.1). The base model is trained for 100,000 steps, and the big model for 300,000 steps (section 5.2).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from manyheads.analysis import costs


def table() -> dict[str, Any]:
    """Return the WMT14 table of the paper as a dictionary.

    It contains the source of the table, the rows (model, BLEU and training FLOPs by language pair), the hardware, and
    the batch sizes.
    """
    found: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return found


def training_cost(preset: str) -> dict[str, Any] | None:
    """Return the training cost of a model in the WMT14 table, as computed here and as printed in the paper.

    The result is None for a preset that the table does not contain. The computed cost is devices x speed x time.
    `agrees` is true if both costs are equal when rounded to two digits. `counted` holds the FLOPs of the matrix
    products alone.
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
    """Return the FLOPs of all matrix products in training a model preset.

    target_tokens  number of target tokens; the number of source tokens is assumed to be equal
    """
    per_token: float = costs.flops(costs.preset_model(preset))["forward_per_token"]
    return costs.TRAINING_PASSES * per_token * target_tokens


def compared() -> dict[str, Any]:
    """Return the whole WMT14 table, with the computed cost (`training_cost`) in the rows of the Transformer."""
    reference = table()
    for row in reference["rows"]:
        if "preset" in row:
            row["computed"] = training_cost(row["preset"])
    return reference
