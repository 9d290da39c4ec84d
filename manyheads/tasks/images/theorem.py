"""That attention can compute any convolution, shown (Cordonnier, Loukas & Jaggi 2020, theorem 1)."""

from __future__ import annotations

import time
from dataclasses import asdict
from math import log10
from typing import Any

from manyheads.analysis.figures.convolution_error import convolution_errors, draw
from manyheads.recipes.run import Run
from manyheads.tasks.images.recipes import TheoremConfig
from manyheads.training.record import write_result
from manyheads.training.run_directory import claim


def train(config: TheoremConfig, run: Run) -> dict[str, Any]:
    """Trains nothing: writes table.txt, error.png and result.json."""
    if run.dry_run:
        return asdict(config)
    claim(run.out, resume=run.resume)
    began = time.monotonic()
    found = convolution_errors(**asdict(config))
    seconds = time.monotonic() - began
    draw(found, run.out / "error.png")
    (run.out / "table.txt").write_text(f"{found}\n", encoding="utf-8")
    highest = max(range(len(found.alphas)), key=lambda i: found.alphas[i])
    return write_result(
        run.out, recipe=run.recipe, overrides=run.overrides, data={},
        metrics={
            f"log10_error_{kernel}x{kernel}": {
                "value": log10(max(errors[highest], 1e-300)),  # no error at all has no logarithm
                "signature": f"float64, inside the image, alpha {found.alphas[highest]:g}",
            }
            for kernel, errors in found.errors.items()
        },
        wall_seconds=seconds, flops=None, parameters=sum(found.parameters.values()), seed=config.seed,
        alphas=list(found.alphas), errors={f"{kernel}x{kernel}": each for kernel, each in found.errors.items()},
    )  # fmt: skip
