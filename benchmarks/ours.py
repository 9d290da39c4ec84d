"""Our side: a model as it is run, what this machine runs it in, and the model in plain PyTorch as reference."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from manyheads.core.config import Precision
from manyheads.core.interface import Generates
from manyheads.core.runtime import prepare
from manyheads.inference import CompiledModel, check, compile_model
from manyheads.models.presets import build, preset

# Settings of our side that are PyTorch's own modules, not lowered: "plain float32", "plain bf16". The error of every
# output is its distance from the output of the first.
PLAIN = "plain"
REFERENCE = f"{PLAIN} float32"

routes: list[str] = []  # of the models that were prepared in this process, in turn


def precisions() -> Mapping[str, str]:
    """Our settings: the precisions that the machine has products for."""
    settings = training_precisions()
    try:
        check(prepare("int8", device="cpu"))
    except ValueError:
        return settings
    return {**settings, "int8": "int8"}


def training_precisions() -> dict[str, str]:
    """Those that have a gradient."""
    settings = {"float32": "float32"}
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        settings["bf16"] = "bf16"
    return settings


def seeded(name: str, **settings: Any) -> Any:
    """A model of random weights, the same in every process; in eval mode."""
    torch.manual_seed(0)
    return build(preset(name, **settings)).eval()


def compiled(model: Any, precision: str, threads: int) -> CompiledModel[Any]:
    """The model as it runs fastest at a precision, and the route that its passes run on."""
    if precision.startswith(PLAIN):
        routes.append("plain")
        compute = prepare(precision.split()[1], threads, device="cpu")  # type: ignore[arg-type]
        return CompiledModel(model.eval(), compute)
    fast = compile_model(model.eval(), prepare(precision, threads, device="cpu"))  # type: ignore[arg-type]
    routes.append(route(fast))
    return fast


def route(model: CompiledModel[Any]) -> str:
    """Return the route of a compiled model: "plain" for PyTorch's own modules, "onednn" or "kernels"."""
    if not model.precision:
        return "plain"
    from manyheads.inference.stack import FusedStack

    stacks = [module for module in model.module.modules() if isinstance(module, FusedStack)]
    generates = isinstance(model.module, Generates)
    return " ".join(sorted({stack.steps if generates else stack.sequences for stack in stacks}))


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def computing(threads: int, precision: str) -> AbstractContextManager[None]:
    """The route's kernels and autocast, as training runs in them; and peers on PyTorch, for it is the best for them."""
    chosen: Precision = "bf16" if precision.startswith("bf16") else "float32"
    return prepare(chosen, threads, device="cpu").autocast()
