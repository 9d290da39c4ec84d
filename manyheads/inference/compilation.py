"""Compilation of a model: the choice of its precision, and the replacement of its parts by faster modules."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyheads.core.block import Stack
from manyheads.core.config import Precision
from manyheads.core.interface import Generates, OutputProjection
from manyheads.core.logits import BLOCK
from manyheads.core.runtime import ComputeConfig, is_bf16_faster, prepare
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.inference.conversion import convert
from manyheads.inference.graphs import compile_for_gpu
from manyheads.inference.kernels import processor
from manyheads.inference.kernels.compiled import Kernel
from manyheads.inference.kernels.packed import Team, get_team
from manyheads.inference.linear import FusedLinear, FusedProjection, is_divisible
from manyheads.inference.measuring import measured_routes, relative_error, stack_speeds
from manyheads.inference.model import CompiledModel, M, R, S
from manyheads.inference.routes import Routes
from manyheads.inference.stack import FusedStack, is_fusible, plain_settings

logger = logging.getLogger(__name__)

# Maximum error of a stack's output that the precision `auto` accepts. The error is the root mean square difference from
# float32, relative to the root mean square of the output. Typical errors are 0.01 to 0.03 in 8 bits and 0.003 to 0.005
# in bf16.
BOUNDS = {"int8": 0.04, "bf16": 0.01}
MANY_LOGITS = 100_000  # number of logits above which several threads process them

reduce_rows = Kernel("reducing.reduce_rows")


def has_kernels() -> bool:
    """Return True if Numba, which compiles the kernels, is installed."""
    return importlib.util.find_spec("numba") is not None


def check(compute: ComputeConfig) -> None:
    """Raise UserError if the configured precision is not available on this machine."""
    if compute.precision != "int8":
        return
    advice = "use float32 or bf16, or auto, which selects the fastest"
    if compute.device != "cpu":
        raise UserError(f"precision int8 is available only on a CPU, found device {compute.device}: {advice}")
    if not has_kernels():
        raise UserError(f"precision int8 needs Numba: pip install 'manyheads[fast]', or {advice}")
    if not processor.HAS_INT8:
        raise UserError(f"this processor has no 8-bit products (AVX512-VNNI or AVX-VNNI): {advice}")


def compile_model(model: M, compute: ComputeConfig) -> CompiledModel[M]:
    """Return the model in its fastest form for this machine, with the configuration to run it with.

    The result has the same methods as `model` and shares unchanged modules with it; `model` itself is not modified. The
    precision float32 is as accurate as PyTorch's matrix products. The precision `auto` becomes the fastest of int8,
    bf16 and float32 whose error is at most its value in `BOUNDS`.
    """
    check(compute)
    if compute.device_type == "cuda":
        return compile_for_gpu(model, compute)
    if not _can_fuse(compute) or not any(parameter.dtype == torch.float32 for parameter in model.parameters()):
        return CompiledModel(model, _plain_precision(compute))
    if compute.precision != "auto":
        return _compiled(model, _plan(model, compute))
    plans = [_plan(model, replace(compute, precision=precision)) for precision in _available()]
    for plan in sorted((plan for plan in plans if plan.routes), key=lambda plan: plan.seconds):
        precision = plan.compute.precision
        if precision == "int8" and plan.is_plain:
            continue
        compiled = _compiled(model, plan)
        if precision == "float32" or relative_error(model, compiled.module) <= BOUNDS[precision]:
            logger.info(f"precision auto: {precision}")
            return compiled
    # The model has no stack whose error could be measured, so `auto` becomes float32.
    return CompiledModel(model, replace(compute, precision="float32"))


def speeds(model: nn.Module, threads: int | None = None) -> list[JsonObject]:
    """Return the measured speed of a model's stacks of blocks on this CPU.

    The result is a list with one dictionary for each stack, precision and kind of work. It contains the seconds of one
    block by route (see `routes.py`), and the route that a loaded model takes. The list is empty if the fused kernels
    are not installed.
    """
    compute = prepare(threads=threads, device="cpu")
    return stack_speeds(model, compute, [*_available()]) if _can_fuse(compute) else []


class FusedModel(CompiledModel[M]):
    """Model with fused kernels. The threads of the kernels also prepare logits, and share the rows of a batch.

    PyTorch runs on one thread, because little work is left for it, and its idle threads would keep the processors busy.
    """

    def __init__(self, module: M, compute: ComputeConfig, team: Team) -> None:
        super().__init__(module, replace(compute, precision="float32", threads=1))
        self.precision, self._team = compute.precision, team

    def reduce(self, logits: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        assert logits.dtype == torch.float32, f"expected float32 logits, found {logits.dtype}"
        logits = logits.contiguous()
        maxima, log_sums = torch.empty(len(logits), -(-logits.shape[1] // BLOCK)), torch.empty(len(logits))
        self._team.run(
            reduce_rows, 1 if logits.numel() < MANY_LOGITS else self._team.threads, logits.numpy(),
            np.array(suppress, np.int64), np.int64(BLOCK), maxima.numpy(), log_sums.numpy(),
        )  # fmt: skip
        return logits, maxima, log_sums

    def map_parts(self, function: Callable[[list[R]], list[S]], rows: list[R], min_rows: int) -> list[S]:
        if len(rows) < self._team.threads * min_rows:
            return function(rows)  # All threads compute all rows together.
        results: list[Any] = [None] * len(rows)

        def run(worker: int, workers: int) -> None:
            results[worker::workers] = function(rows[worker::workers])

        self._team.work(run, self._team.threads)
        return results


@dataclass(frozen=True)
class _Plan:
    """Routes of the stacks of a model in the precision of `compute`.

    routes   measured times by route, for each stack that the kernels support, by the identity of the stack
    seconds  time of one call of all stacks: of a step with cached keys and values for models that generate, and of
             whole sequences for other models
    """

    compute: ComputeConfig
    routes: Mapping[int, Routes]
    seconds: float

    @property
    def is_plain(self) -> bool:
        """True if all stacks run with PyTorch's modules, which have no 8-bit matrix products."""
        return all(route == "plain" for routes in self.routes.values() for route in routes.used())


def _plan(model: nn.Module, compute: ComputeConfig) -> _Plan:
    precision, routes, seconds = compute.precision, dict[int, Routes](), 0.0
    if precision == "bf16" and not processor.HAS_BF16:
        # The kernels cannot be compiled, and a warning was already logged. The model runs without them, in autocast.
        return _Plan(compute, {}, 0.0)
    steps = isinstance(model, Generates)
    for module in model.modules():
        if isinstance(module, Stack) and is_fusible(module, precision):
            found = routes[id(module)] = measured_routes(module, compute, steps=steps)
            times = found.steps if steps else found.sequences
            seconds += len(module.blocks) * min(times.values())
    return _Plan(compute, routes, seconds)


def _compiled(model: M, plan: _Plan) -> CompiledModel[M]:
    """Return a model with fused stacks and linear layers, or the same model if PyTorch's modules are faster."""
    compute, precision = plan.compute, plan.compute.precision
    if plan.is_plain:
        if precision == "int8":
            reason = "PyTorch is faster in float32" if plan.routes else "found no blocks that can run in 8 bits"
            logger.warning(f"precision int8: {reason}: using float32")
        return CompiledModel(model, plain_settings(compute))
    team = get_team(compute.threads)

    def fuse(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module | None:
        if type(module) is nn.Linear and is_divisible(module, precision):
            return FusedLinear(module.weight, module.bias, precision, team)
        if isinstance(module, OutputProjection):
            return FusedProjection(module, precision, team)
        if isinstance(module, Stack) and id(module) in plan.routes:
            blocks = children["blocks"]
            assert isinstance(blocks, nn.ModuleList)
            return FusedStack(module, blocks, compute, plan.routes[id(module)])
        return None

    return FusedModel(convert(model, fuse), compute, team)


def _can_fuse(compute: ComputeConfig) -> bool:
    return compute.device == "cpu" and has_kernels()


def _available() -> Iterator[Precision]:
    """Yield the precisions that the kernels have on this processor."""
    if processor.HAS_INT8:
        yield "int8"
    if processor.HAS_BF16:
        yield "bf16"
    yield "float32"


def _plain_precision(compute: ComputeConfig) -> ComputeConfig:
    """Return the compute settings for a model that runs with PyTorch's modules, with `auto` replaced by a precision."""
    if compute.precision != "auto":
        return compute
    return replace(compute, precision="bf16" if is_bf16_faster(compute.threads) else "float32")
