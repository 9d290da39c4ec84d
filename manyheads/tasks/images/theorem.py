"""That attention can compute any convolution, shown (Cordonnier, Loukas & Jaggi 2020, theorem 1)."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from math import isfinite, log10
from typing import Any

from manyheads.analysis.figures.convolution_error import ALPHAS, convolution_errors, draw
from manyheads.recipes.run import Run
from manyheads.training.record import write_result
from manyheads.training.run_directory import claim


@dataclass(frozen=True)
class TheoremConfig:
    """Random `kernels` x `kernels` convolutions of `images` random images, each alpha in turn.

    size  pixels of an image in both directions, of `channels` channels
    """

    kernels: tuple[int, ...] = (3, 5, 7)
    alphas: tuple[float, ...] = ALPHAS
    size: int = 16
    channels: int = 4
    images: int = 2
    seed: int = 1

    def __post_init__(self) -> None:
        if not all(isfinite(alpha) and alpha >= 0 for alpha in self.alphas):
            raise ValueError(f"alphas are {', '.join(map(str, self.alphas))}: expected numbers of 0 or more")


def theorem(config: TheoremConfig, *, run: Run) -> dict[str, Any]:
    """manyheads train conv-attention/theorem [kernels=3,5,7 alphas=5,20,46]

    Trains nothing: writes convolutions as attention with the paper's construction and measures in float64 how far the
    two are apart inside the image, the largest error over alpha. Writes table.txt, error.png and result.json, whose
    metrics are the decimal logarithms of the errors at the highest alpha. Seconds.
    """
    if run.init is not None:
        raise ValueError(f"{run.recipe} trains nothing and starts from no model: leave --init out")
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
