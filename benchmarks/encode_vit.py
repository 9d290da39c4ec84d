"""ViT-B/16: images a second, from pixels to the logits of 1,000 labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.ceilings import Ceilings
from benchmarks.ours import compiled, computing, generator, precisions, seeded
from benchmarks.peers import openvino
from benchmarks.peers import transformers as hugging_face
from benchmarks.work import RELATIVE, Prepared, Side, Work, relative_error
from manyheads.analysis import costs
from manyheads.inference import BOUNDS


@dataclass(frozen=True)
class Seeing:
    """So many random images at once."""

    images: int
    preset: str = "vit/b16"

    def inputs(self, config: Any) -> Tensor:
        """(B, C, Y, X)"""
        return torch.randn(self.images, config.channels, config.image_size, config.image_size, generator=generator())


def ours(case: Seeing, setting: str, threads: int) -> Prepared:
    model = compiled(seeded(case.preset), setting, threads)
    images = case.inputs(model.config)

    def look() -> Tensor:
        with torch.inference_mode(), model.compute.autocast():
            logits: Tensor = model(images)
            return logits

    def run() -> None:
        look()

    return Prepared(run, look().float().numpy())


def with_openvino(case: Seeing, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    images = case.inputs(model.config)
    network = openvino.encoder(model, (images,), setting, threads, fixed=True)

    def run() -> None:
        network(images.numpy())

    return Prepared(run, network(images.numpy()))


def with_transformers(case: Seeing, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    images = case.inputs(model.config)
    other = hugging_face.twin(model, "AutoModelForImageClassification", setting).eval()
    images = images.to(next(other.parameters()).dtype)

    def look() -> Tensor:
        with torch.inference_mode(), computing(threads, "float32"):
            logits: Tensor = other(images).logits
            return logits

    def run() -> None:
        look()

    return Prepared(run, look().float().numpy())


def least(case: Seeing, precision: str, ceilings: Ceilings) -> float:
    """The products of all images, and the weights once."""
    model = costs.preset_model(case.preset)
    weights = sum(costs.parameters(model).values())
    return ceilings.least(precision, weights, case.images * costs.flops(model)["forward"])


WORK = Work(
    unit="images/s", cases={"16 images": Seeing(16)}, amount=lambda case: case.images, least=least,
    ours=Side(precisions(), ours),
    peers={
        "openvino": Side(openvino.ENCODING, with_openvino),
        "transformers": Side(hugging_face.COMPILED, with_transformers),
    },
    error=relative_error, error_is=RELATIVE, bounds=BOUNDS,
)  # fmt: skip
