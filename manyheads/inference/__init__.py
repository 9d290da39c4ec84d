"""Conversion of a loaded model to the fastest form for this machine with the function `lower`.

On a CPU, the stacks of Transformer blocks are replaced by modules (`stack.py`) that run them by a measured route
(`routes.py`): fused kernels with packed weights (`kernels/`), or products of oneDNN (`onednn.py`). The original modules
run if they are faster, and for features that the routes do not support, such as recording or editing of activations.
The saved model does not change.

Numba (extra `fast`) compiles the kernels. Without it, models run unchanged. `graphs.py` is for GPUs.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from manyheads.core.block import Stack
from manyheads.core.config import Precision
from manyheads.core.runtime import ComputeConfig, is_bf16_faster, prepare
from manyheads.errors import UserError

if TYPE_CHECKING:
    from manyheads.inference.routes import Routes

logger = logging.getLogger(__name__)
R = TypeVar("R")
S = TypeVar("S")

# Maximum errors that the precision `auto` accepts for a stack: root mean square difference from float32, relative to
# the root mean square of the values. Typical errors are 0.01 to 0.03 in 8 bits and 0.003 to 0.005 in bf16.
BOUNDS = {"int8": 0.04, "bf16": 0.01}


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
    from manyheads.inference.kernels.processor import HAS_INT8

    if not HAS_INT8:
        raise UserError(f"this processor has no 8-bit products (AVX512-VNNI or AVX-VNNI): {advice}")


def lower(model: Any, compute: ComputeConfig) -> tuple[Any, ComputeConfig]:
    """Return a model with fused kernels for this configuration, and the configuration to run it with.

    The new model has the same methods and shares unchanged modules with `model`, which is not modified. Compared with
    float64, the precision float32 is as accurate as PyTorch's products. The precision `auto` becomes the fastest of
    int8, bf16 and float32 whose error is at most its value in `BOUNDS`.
    """
    check(compute)
    if compute.device == "cuda":
        from manyheads.inference.graphs import lower_for_gpu

        return lower_for_gpu(model, compute)
    if not _can_lower(compute) or not any(parameter.dtype == torch.float32 for parameter in model.parameters()):
        return model, _unlowered(compute)
    if compute.precision != "auto":
        return _lowered(model, _plan(model, compute))
    from manyheads.inference.measuring import relative_error

    plans = [_plan(model, replace(compute, precision=precision)) for precision in _available()]
    for plan in sorted((plan for plan in plans if plan.routes), key=lambda plan: plan.seconds):
        precision = plan.compute.precision
        if precision == "int8" and plan.is_plain:
            continue
        lowered, config = _lowered(model, plan)
        if precision == "float32" or relative_error(model, lowered) <= BOUNDS[precision]:
            logger.info(f"precision auto: {precision}")
            return lowered, config
    return model, replace(compute, precision="float32")  # no stack whose error could be measured


def _can_lower(compute: ComputeConfig) -> bool:
    return compute.device == "cpu" and has_kernels()


def _unlowered(compute: ComputeConfig) -> ComputeConfig:
    """Return the settings of a model that keeps PyTorch's modules."""
    if compute.precision != "auto":
        return compute
    return replace(compute, precision="bf16" if is_bf16_faster(compute.threads) else "float32")


@dataclass(frozen=True)
class _Plan:
    """Routes of the stacks of a model in the precision of `compute`.

    routes   by the identity of the stack, for stacks that the kernels support
    seconds  time of one call of all stacks: a cached step for models that generate, whole sequences for others
    """

    compute: ComputeConfig
    routes: Mapping[int, Routes]
    seconds: float

    @property
    def is_plain(self) -> bool:
        """True if PyTorch's modules do all the work. They have no 8-bit products."""
        return all(route == "plain" for routes in self.routes.values() for route in routes.used())


def _plan(model: Any, compute: ComputeConfig) -> _Plan:
    from manyheads.inference.kernels.processor import HAS_BF16
    from manyheads.inference.measuring import measured_routes
    from manyheads.inference.stack import fusible

    precision, routes, seconds = compute.precision, {}, 0.0
    if precision == "bf16" and not HAS_BF16:
        # The function `prepare` has already logged a warning. The model runs under autocast, without the kernels.
        return _Plan(compute, {}, 0.0)
    steps = hasattr(model, "project")
    for module in model.modules():
        if isinstance(module, Stack) and fusible(module, precision):
            found = routes[id(module)] = measured_routes(module, compute, steps=steps)
            times = found.steps if steps else found.sequences
            seconds += len(module.blocks) * min(times.values())
    return _Plan(compute, routes, seconds)


def fused_projection(model: Any) -> Any:
    """Return the fused output projection of a lowered model, or None.

    Only this function finds it. An object that wraps a lowered model must have its attribute `project`, or it runs
    without fused kernels.
    """
    project = getattr(model, "project", None)
    return project if hasattr(project, "team") else None


def reduction(model: Any) -> Callable[[Tensor, Sequence[int], int], tuple[Tensor, Tensor, Tensor]] | None:
    """Return a faster replacement for `generation.protocol.reduced`, or None for a model without fused kernels."""
    return getattr(fused_projection(model), "reduced", None)


def map_parts(model: Any, function: Callable[[list[R]], list[S]], rows: list[R], least: int) -> list[S]:
    """Return function(rows). With fused kernels, workers that use one processor each share the rows if that is faster.

    least  minimum number of rows for each worker; with fewer, all processors compute the same rows together
    """
    team = getattr(fused_projection(model), "team", None)
    if team is None or len(rows) < team.threads * least:
        return function(rows)
    results: list[Any] = [None] * len(rows)

    def run(worker: int, workers: int) -> None:
        results[worker::workers] = function(rows[worker::workers])

    team.work(run, team.threads)
    return results


def speeds(model: nn.Module, threads: int | None = None) -> list[dict[str, Any]]:
    """Return the measured speed of a model's stacks of blocks on this CPU, a row for each precision and kind of work.

    The rows contain seconds of one block by route (see `routes.py`), and the route that a loaded model takes. They are
    empty if the fused kernels are not installed.
    """
    compute = prepare(threads=threads, device="cpu")
    if not _can_lower(compute):
        return []
    from manyheads.inference.measuring import stack_speeds

    return stack_speeds(model, compute, list(_available()))


def _available() -> Iterator[Precision]:
    """Yield the precisions that the kernels have on this processor."""
    from manyheads.inference.kernels.processor import HAS_BF16, HAS_INT8

    if HAS_INT8:
        yield "int8"
    if HAS_BF16:
        yield "bf16"
    yield "float32"


def _lowered(model: Any, plan: _Plan) -> tuple[Any, ComputeConfig]:
    """Return a model with fused stacks and linear layers, or the same model if PyTorch's modules are faster."""
    from manyheads.inference.conversion import convert
    from manyheads.inference.kernels.packed import get_team
    from manyheads.inference.stack import FusedLinear, FusedStack, divisible, plain_settings

    compute, precision = plan.compute, plan.compute.precision
    if plan.is_plain:
        if precision == "int8":
            reason = "PyTorch is faster in float32" if plan.routes else "found no blocks that can run in 8 bits"
            logger.warning(f"precision int8: {reason}: using float32")
        return model, plain_settings(compute)
    team = get_team(compute.threads)

    def fuse(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module | None:
        if type(module) is nn.Linear and divisible(module, precision):
            return FusedLinear(module.weight, module.bias, precision, team)
        if isinstance(module, Stack) and id(module) in plan.routes:
            blocks = children["blocks"]
            assert isinstance(blocks, nn.ModuleList)
            return FusedStack(module, blocks, compute, plan.routes[id(module)])
        return None

    lowered: Any = convert(model, fuse, {})
    if hasattr(model, "output_weight") and hasattr(model, "project"):
        bias = getattr(model, "output_bias", None)
        # The replaced method is an attribute of the instance, which hides the method of the class.
        lowered.__dict__["project"] = FusedLinear(model.output_weight, bias, precision, team)
    # Limit PyTorch to one thread: little work is left for it, and idle PyTorch threads would keep the processors busy.
    return lowered, replace(compute, precision="float32", threads=1, lowered=precision)
