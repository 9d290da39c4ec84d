"""A model's training over ranks: by PyTorch's DistributedDataParallel, or by FSDP2, its `fully_shard`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from manyheads.core.block import Stack
from manyheads.core.runtime import ComputeConfig
from manyheads.training.distributed import DistributedContext
from manyheads.training.state import weights

T = TypeVar("T")


class ParallelStrategy:
    """How the loop computes with the model: in one process, as it is."""

    def compute(self, function: Callable[..., T], *arguments: Any, counted: bool = True) -> T:
        """The function, which uses the model. Not `counted`: its loss will be multiplied by zero."""
        return function(*arguments)

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        """Forward and backward pass of a micro-batch, the last of its group or not."""
        return nullcontext()

    def whole(self, tensors: Mapping[str, Tensor], *, everywhere: bool = False) -> dict[str, Tensor]:
        """The tensors, none of them a shard; `everywhere`, or for rank 0 alone, which writes them."""
        return dict(tensors)

    def save(self, save: Callable[[], T]) -> T | None:
        """What writes the model, called where it may write, with whole weights."""
        return save()


def parallelize(
    model: nn.Module, ranks: DistributedContext, compute: ComputeConfig, *, shard: bool
) -> ParallelStrategy:
    """Over these ranks: `shard` says whether each holds all of the model, or a part of it (of the optimiser's state
    and the gradients, too). The weights of rank 0 are everybody's from here on."""
    if ranks.world == 1:
        return ParallelStrategy()
    import torch.distributed as dist

    for tensor in weights(model).values():
        dist.broadcast(tensor, 0)
    return _Sharded(model, ranks, compute) if shard else _Replicated(model, ranks, compute)


class _Computing(nn.Module):
    """A function that uses the model, as the forward pass of a module: what DDP and FSDP2 wrap. So a task may use the
    parts of its model as it likes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class _Replicated(ParallelStrategy):
    def __init__(self, model: nn.Module, ranks: DistributedContext, compute: ComputeConfig) -> None:
        self._ranks = ranks
        self._norms = _over_ranks(model)
        # buffers are the same everywhere; a parameter that a batch leaves out has no gradient, as in one process
        self._model = nn.parallel.DistributedDataParallel(
            _Computing(model), device_ids=[torch.cuda.current_device()] if compute.device == "cuda" else None,
            forward_sync_buffers=False, find_unused_parameters=True,
        )  # fmt: skip

    def compute(self, function: Callable[..., T], *arguments: Any, counted: bool = True) -> T:
        for norm in self._norms:
            norm.counted = counted
        return self._model(function, *arguments) if torch.is_grad_enabled() else function(*arguments)

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self._model.no_sync()

    def whole(self, tensors: Mapping[str, Tensor], *, everywhere: bool = False) -> dict[str, Tensor]:
        return dict(tensors) if everywhere or self._ranks.first else {}

    def save(self, save: Callable[[], T]) -> T | None:
        return save() if self._ranks.first else None


class _Sharded(ParallelStrategy):
    """Each block of a stack is gathered when it is computed, and what is outside of them at the beginning of a pass. In
    bf16 blocks are gathered in bf16, while gradients are summed and weights updated in float32."""

    def __init__(self, model: nn.Module, ranks: DistributedContext, compute: ComputeConfig) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        self._ranks, self._bare = ranks, model
        self._norms = _over_ranks(model)
        mesh = init_device_mesh(compute.device, (ranks.world,))
        narrow = torch.bfloat16 if compute.precision == "bf16" else None
        policy = MixedPrecisionPolicy(
            param_dtype=narrow, reduce_dtype=torch.float32 if narrow else None, cast_forward_inputs=False
        )
        for stack in (module for module in model.modules() if isinstance(module, Stack)):
            for block in stack.blocks:
                fully_shard(block, mesh=mesh, mp_policy=policy)
        self._model: Any = fully_shard(
            _Computing(model), mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False)
        )

    def compute(self, function: Callable[..., T], *arguments: Any, counted: bool = True) -> T:
        for norm in self._norms:
            norm.counted = counted
        result = self._model(function, *arguments)
        if not torch.is_grad_enabled():
            self._model.reshard()  # no backward pass does it
        return result

    def whole(self, tensors: Mapping[str, Tensor], *, everywhere: bool = False) -> dict[str, Tensor]:
        gathered = {}
        for name, tensor in tensors.items():
            full = unsharded(tensor).cpu()
            if everywhere or self._ranks.first:
                gathered[name] = full
        return gathered

    def save(self, save: Callable[[], T]) -> T | None:
        computing = _Computing(self._bare)
        full = self.whole(weights(computing))
        return torch.func.functional_call(computing, full, (save,), strict=False) if self._ranks.first else None


def unsharded(tensor: Tensor) -> Tensor:
    """All of a tensor that may be a shard; all ranks have to ask."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


class _SumOverRanks(torch.autograd.Function):
    """The sum of all ranks' tensors, from which each of them learns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        import torch.distributed as dist

        ctx.group, total = group, x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        import torch.distributed as dist

        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _NormOverRanks(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation by mean and variance of all ranks' rows. PyTorch's SyncBatchNorm is for GPUs alone."""

    group: Any
    counted: bool

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        x = input if input.dtype == torch.float64 else input.float()  # (B, C, ...)
        others = [0, *range(2, x.ndim)]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        weight = float(self.counted)
        count = self._sum(x.new_tensor(weight * x.numel() / x.shape[1]))
        mean = self._sum(x.sum(others) * weight) / count  # (C,)
        centred = x - mean.view(shape)
        variance = self._sum(centred.square().sum(others) * weight) / count
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean), share)
            self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var), share)
        y = centred * (variance + self.eps).rsqrt().view(shape)
        return (y * self.weight.view(shape) + self.bias.view(shape)).to(input.dtype)

    def _sum(self, x: Tensor) -> Tensor:
        total = _SumOverRanks.apply(x, self.group)
        assert isinstance(total, Tensor)
        return total


def _over_ranks(model: nn.Module) -> Iterable[_NormOverRanks]:
    """Makes every batch normalisation of the model one over all ranks, with messages apart from the gradients'."""
    import torch.distributed as dist

    norms: list[Any] = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    group = dist.new_group() if norms else None
    for norm in norms:
        norm.__class__ = _NormOverRanks
        norm.group, norm.counted = group, True
    return norms
