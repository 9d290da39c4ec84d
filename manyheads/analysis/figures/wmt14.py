"""The published WMT14 table, kept as reference data, and the arithmetic of its training-cost column.

The paper multiplies training time, devices and their sustained float32 speed (section 6.1): 9.5 TFLOPS for a P100, not
its 18.7 of half precision.
"""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any


def table() -> dict[str, Any]:
    """Source, rows (model, BLEU and training FLOPs by language pair) and the hardware of the Transformer's rows."""
    return json.loads(files("manyheads.analysis.figures").joinpath("wmt14.json").read_text(encoding="utf-8"))


def training_cost(preset: str) -> dict[str, Any] | None:
    """devices x speed x time of a published row beside the printed figure; None for presets that are not in the table.

    `agrees`: rounded to the printed two digits, they are equal.
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
                "agrees": round(computed, digits) == published,
                "bleu": row["bleu"],
            }
    return None
