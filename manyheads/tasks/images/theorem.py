"""Numerical check that attention can compute any convolution (Cordonnier, Loukas & Jaggi 2020, theorem 1)."""

from __future__ import annotations

import time
from dataclasses import asdict
from math import log10
from typing import Any

from manyheads.analysis import drawing
from manyheads.analysis.figures.convolution_error import convolution_errors, draw
from manyheads.runs.run import Run
from manyheads.tasks.images.recipes import TheoremConfig
from manyheads.training.record import write_result
from manyheads.training.run_directory import locked_run_directory


def train(config: TheoremConfig, run: Run) -> dict[str, Any]:
    """Run the numerical check and write table.txt, error.png and result.json. No model is trained."""
    if run.dry_run:
        return asdict(config)
    with locked_run_directory(run.out, resume=run.resume):
        began = time.monotonic()
        measured = convolution_errors(**asdict(config))
        seconds = time.monotonic() - began
        with drawing.optional():
            draw(measured, run.out / "error.png")
        (run.out / "table.txt").write_text(f"{measured}\n", encoding="utf-8")
        highest = max(range(len(measured.alphas)), key=lambda i: measured.alphas[i])
        return write_result(
            run.out, recipe=run.recipe, overrides=run.overrides, data={},
            metrics={
                f"log10_error_{kernel}x{kernel}": {
                    # The error has a lower limit in the plot, because zero has no logarithm.
                    "value": log10(max(errors[highest], 1e-300)),
                    "signature": f"float64, inside the image, alpha {measured.alphas[highest]:g}",
                }
                for kernel, errors in measured.errors.items()
            },
            wall_seconds=seconds, flops=None, parameters=sum(measured.parameters.values()), seed=config.seed,
            alphas=list(measured.alphas),
            errors={f"{kernel}x{kernel}": errors for kernel, errors in measured.errors.items()},
        )  # fmt: skip
