"""Conversion of a loaded model to fused CPU kernels with the function `lower`.

The stacks of Transformer blocks in a model are replaced by fused functions (`fused.py`, built from `kernels.py` and
`tile.py`) with packed weights (`packed.py`). `stack.py` contains the modules that replace the stacks. The saved model
does not change. The original modules run if a feature is not supported by the kernels, such as recording or editing of
activations.

Numba (extra `fast`) compiles the kernels. Without it, and on a GPU, models run unchanged.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.core.block import Block, Stack
from manyheads.core.config import Precision
from manyheads.core.runtime import ComputeConfig, is_bf16_faster
from manyheads.errors import UserError

logger = logging.getLogger(__name__)

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
    from manyheads.inference.tile import HAS_INT8

    if not HAS_INT8:
        raise UserError(f"this processor has no 8-bit products (AVX512-VNNI or AVX-VNNI): {advice}")


def lower(model: Any, compute: ComputeConfig) -> tuple[Any, ComputeConfig]:
    """Return a model with fused kernels for this configuration, and the configuration to run it with.

    The new model has the same methods and shares unchanged modules with `model`, which is not modified. Compared with
    float64, the precision float32 is as accurate as PyTorch's products. The precision `auto` becomes the first of int8,
    bf16 and float32 whose error is at most its value in `BOUNDS`.
    """
    check(compute)
    if compute.device == "cuda":
        from manyheads.inference.graphs import lower_for_gpu

        return lower_for_gpu(model, compute)
    if compute.precision == "auto":
        if _can_lower(compute):
            for precision in _available(compute.threads):
                lowered, config = _lower_to(model, replace(compute, precision=precision))
                # If the model contains no fused stack, no error can be measured.
                if precision == "float32" or (config.lowered and _relative_error(model, lowered) <= BOUNDS[precision]):
                    logger.info(f"precision auto: {precision}")
                    return lowered, config
        return model, replace(compute, precision="bf16" if is_bf16_faster(compute.threads) else "float32")
    lowered, config = _lower_to(model, compute)
    if compute.precision == "int8" and not config.lowered:
        from manyheads.inference.stack import FusedLinear

        layers = sum(isinstance(module, FusedLinear) for module in lowered.modules())
        found = f"found no blocks that can run in 8 bits: using int8 for {layers} linear layers, and float32 otherwise"
        logger.warning(f"precision int8: {found}")
    return lowered, config


def _can_lower(compute: ComputeConfig) -> bool:
    return compute.device == "cpu" and has_kernels()


def _lower_to(model: Any, compute: ComputeConfig) -> tuple[Any, ComputeConfig]:
    """Return a model with fused kernels, and the configuration to run it with, for a precision other than `auto`."""
    if not _can_lower(compute) or not any(parameter.dtype == torch.float32 for parameter in model.parameters()):
        return model, compute
    fusible = any(type(module) is Stack and not module.biased for module in model.modules())
    if not fusible and compute.precision != "int8":
        return model, compute
    return _lower_modules(model, compute)


def reduction(model: Any) -> Callable[[Tensor, Sequence[int], int], tuple[Tensor, Tensor, Tensor]] | None:
    """Return a faster replacement for `generation.protocol.reduced`, or None for a model without fused kernels."""
    return getattr(getattr(model, "project", None), "reduced", None)


def _available(threads: int | None) -> Iterator[Precision]:
    """Yield the available precisions, the fastest first.

    bf16 is yielded only if a measurement shows that it is faster than float32. The measurement is not made if the
    caller accepts int8.
    """
    from manyheads.inference.tile import HAS_BF16, HAS_INT8

    if HAS_INT8:
        yield "int8"
    if HAS_BF16 and is_bf16_faster(threads):
        yield "bf16"
    yield "float32"


def _lower_modules(model: Any, compute: ComputeConfig) -> tuple[Any, ComputeConfig]:
    from manyheads.inference.kernels import log_compilation
    from manyheads.inference.packed import get_team
    from manyheads.inference.stack import FusedLinear, FusedStack, divisible, fusible
    from manyheads.inference.tile import HAS_BF16

    if compute.precision == "bf16" and not HAS_BF16:
        # The function `prepare` has already logged a warning. The model runs under autocast, without the kernels.
        return model, compute
    log_compilation()
    precision = compute.precision
    team = get_team(compute.threads or torch.get_num_threads())
    converted: dict[int, nn.Module] = {}

    def convert(module: nn.Module) -> nn.Module:
        if id(module) in converted:
            return converted[id(module)]
        result = module
        if type(module) is nn.Linear and divisible(module, precision):
            result = FusedLinear(module.weight, module.bias, precision, team)
        else:
            children = {name: convert(child) for name, child in module.named_children()}
            if isinstance(module, Stack) and fusible(module, precision):
                blocks = children["blocks"]
                assert isinstance(blocks, nn.ModuleList)
                result = FusedStack(module, blocks, precision, team)
            elif any(children[name] is not child for name, child in module.named_children()):
                result = copy.copy(module)
                result._modules = {**module._modules, **children}
        converted[id(module)] = result
        return result

    lowered: Any = convert(model)
    if not any(isinstance(module, FusedStack) for module in lowered.modules()):
        return (lowered, replace(compute, precision="float32")) if precision == "int8" else (model, compute)
    if hasattr(model, "output_weight") and hasattr(model, "project"):
        bias = getattr(model, "output_bias", None)
        # The replaced method is an attribute of the instance, which hides the method of the class.
        lowered.__dict__["project"] = FusedLinear(model.output_weight, bias, precision, team)
    # Limit PyTorch to one thread: little work is left for it, and idle PyTorch threads would keep the processors busy.
    return lowered, replace(compute, precision="float32", threads=1, lowered=precision)


@torch.no_grad()
def _relative_error(model: nn.Module, lowered: nn.Module) -> float:
    """Return the maximum relative error of the fused stacks compared with float32.

    It is measured on a few embeddings of the model, or on random numbers.
    """
    from manyheads.inference.stack import FusedStack

    generator, worst = torch.Generator().manual_seed(0), 0.0
    for module in lowered.modules():
        if not isinstance(module, FusedStack):
            continue
        first = module.plain.blocks[0]
        assert isinstance(first, Block)
        width = first.attention.output.out_features
        x = torch.randn(2, 8, width, generator=generator)  # (B, T, D)
        for embedding in model.modules():
            if isinstance(embedding, nn.Embedding) and embedding.embedding_dim == width:
                x = embedding(torch.randint(embedding.num_embeddings, (2, 8), generator=generator)).float()
                break
        plain, fused = (stack(x, **_cross_inputs(stack, module.plain.blocks, x)) for stack in (module.plain, module))
        worst = max(
            worst, float((fused - plain).norm() / plain.norm()), key=lambda error: (error != error, error)
        )  # an error that is NaN is above every bound
    return worst


def _cross_inputs(stack: Stack, blocks: nn.ModuleList, x: Tensor) -> dict[str, Any]:
    """For a stack with cross-attention, return a cache and masks with which x is also the encoder output.

    For other stacks, the result is empty.
    """
    cache = stack.new_cache(len(x), x.shape[1], x)
    for layer, block in enumerate(blocks):
        assert isinstance(block, Block)
        if block.cross is None:
            return {}
        cache.set_cross(layer, *block.cross.project_keys_values(x), None)
    return {"cache": cache, "mask": cache.mask(x.shape[1]), "memory_mask": cache.cross_mask()}
