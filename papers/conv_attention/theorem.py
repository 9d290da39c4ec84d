"""Difference between a convolution and an attention layer that imitates it, by the sharpness alpha of the attention.

Theorem 1 of Cordonnier 2020 states that the difference vanishes as alpha grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

import torch
from torch import nn

from manyheads.analysis.drawing import save
from manyheads.errors import UserError, extra
from manyheads.models.conv_attention import attention_of
from manyheads.training.record import write_result

ALPHAS = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 46.0, 60.0, 100.0)
SMALLEST = 1e-300  # An error of zero has no logarithm.


@dataclass(frozen=True)
class Errors:
    """Largest difference between attention and convolution inside the image, for each kernel size and alpha.

    The outputs of the convolution have unit variance.

    parameters  number of parameters of the attention layer, by kernel size
    """

    alphas: tuple[float, ...]
    errors: dict[int, list[float]]
    parameters: dict[int, int]

    def __str__(self) -> str:
        lines = ["alpha " + "".join(f"{f'{kernel} x {kernel}':>10}" for kernel in self.errors)]
        rows = zip(self.alphas, *self.errors.values(), strict=True)
        return "\n".join(lines + [f"{alpha:5g} " + "".join(f"{e:10.1e}" for e in row) for alpha, *row in rows])


def convolution_errors(
    kernels: Sequence[int],
    alphas: Sequence[float],
    *,
    size: int = 16,
    channels: int = 4,
    images: int = 2,
    seed: int = 1,
) -> Errors:
    """Compare random convolutions with attention layers that imitate them, in float64.

    The inputs are random images of `size` x `size` pixels.
    """
    if not kernels or not alphas:
        raise UserError("no kernels or no alphas: expected at least one of each")
    if wrong := [kernel for kernel in kernels if kernel < 1 or kernel % 2 == 0 or kernel > size]:
        raise UserError(f"kernels {', '.join(map(str, wrong))}: expected odd sizes up to the image size {size}")
    if min(alphas) < 0 or channels < 1 or images < 1:
        raise UserError(f"alpha {min(alphas):g}, {channels} channels, {images} images: expected at least 0, 1 and 1")
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(images, channels, size, size, generator=random, dtype=torch.float64)
    errors: dict[int, list[float]] = {}
    parameters: dict[int, int] = {}
    for kernel in kernels:
        weight = torch.randn(channels, channels, kernel, kernel, generator=random, dtype=torch.float64)
        weight /= (channels * kernel * kernel) ** 0.5  # The kernel is scaled so that the outputs have unit variance.
        # The comparison uses only positions where the whole kernel lies within the image.
        exact = nn.functional.conv2d(x, weight)
        inside = slice(kernel // 2, size - kernel // 2)
        errors[kernel] = []
        for alpha in alphas:
            attention = attention_of(weight, alpha=alpha)
            with torch.no_grad():
                output = attention(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)[:, :, inside, inside]
            errors[kernel].append(float((output - exact).abs().max()))
        parameters[kernel] = sum(p.numel() for p in attention.parameters())
    return Errors(tuple(alphas), errors, parameters)


def draw(measured: Errors, path: str | Path) -> None:
    """Draw the difference between attention and convolution over alpha, with a curve for each kernel size.

    The curve exp(-alpha) shows, for comparison, the attention weight of a neighbor of the pixel that should get all
    attention.
    """
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    for kernel, errors in measured.errors.items():
        panel.semilogy(measured.alphas, errors, ".-", label=f"{kernel} x {kernel}")
    fine = torch.linspace(min(measured.alphas), max(measured.alphas), 200, dtype=torch.float64)
    panel.semilogy(fine.numpy(), fine.neg().exp().numpy(), ":", color="gray", label="exp(-alpha)")
    panel.axhline(torch.finfo(torch.float64).eps, color="black", lw=0.8, label="spacing of float64 at 1")
    panel.set(xlabel="alpha", ylabel="largest error inside the image", ylim=(1e-18, 10))
    panel.legend()
    save(figure, path)


def write_record(measured: Errors, out: Path, *, seed: int, seconds: float) -> None:
    """Write result.json into a folder. Its metrics are the decimal logarithms of the errors at the largest alpha."""
    largest = measured.alphas.index(max(measured.alphas))
    signature = f"float64, inside the image, alpha {measured.alphas[largest]:g}"
    names = {kernel: f"{kernel}x{kernel}" for kernel in measured.errors}
    metrics = {
        f"log10_error_{names[kernel]}": {"value": log10(max(errors[largest], SMALLEST)), "signature": signature}
        for kernel, errors in measured.errors.items()
    }
    write_result(
        out, recipe="conv-attention/theorem", overrides={}, data={}, metrics=metrics, wall_seconds=seconds, flops=None,
        parameters=sum(measured.parameters.values()), seed=seed, alphas=list(measured.alphas),
        errors={names[kernel]: errors for kernel, errors in measured.errors.items()},
    )  # fmt: skip
