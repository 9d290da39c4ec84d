"""Data-parallel training over ranks with PyTorch's DistributedDataParallel or FSDP2 (`fully_shard`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from manyheads.core.block import Stack
from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError
from manyheads.training.distributed import DistributedContext
from manyheads.training.state import as_sharded, weights
from manyheads.training.tuning import FrozenNorm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class ParallelStrategy:
    """Strategy for running the model in the training loop. This base class is for a single process."""

    def compute(self, function: Callable[..., T], *arguments: object, counted: bool = True) -> T:
        """Call a function that uses the model, and return the result of the function.

        counted  False if the loss of this batch does not count, because the rank has no rows in it
        """
        return function(*arguments)

    def accumulation(self, last: bool) -> AbstractContextManager[object]:
        """Return the context manager for the forward and backward pass of a micro-batch.

        last  True for the last micro-batch of the step, after which gradients are averaged over the ranks
        """
        return nullcontext()

    def full_tensor(self, tensor: Tensor) -> Tensor:
        """Return the full tensor of a tensor that may be sharded. Collective: all ranks must call it."""
        return tensor

    def full_tensors(self, tensors: Mapping[str, Tensor], *, on_all_ranks: bool = False) -> dict[str, Tensor]:
        """Return the full tensors for the given sharded tensors, on rank 0 only, or on all ranks if `on_all_ranks`."""
        return dict(tensors)

    def save(self, save: Callable[[], T]) -> T | None:
        """Call a function that writes the model to disk. Only the rank that writes files calls it.

        During the call, the model has its full weights, even if training shards them.
        """
        return save()


def parallelize(
    model: nn.Module, ranks: DistributedContext, compute: ComputeConfig, *, shard: bool
) -> ParallelStrategy:
    """Return the parallel strategy for these ranks, and copy the weights of rank 0 to all ranks.

    shard  if True, split parameters, gradients and optimizer state over the ranks (FSDP2). If False, each rank has a
           copy of them (DDP)
    """
    if ranks.world == 1:
        return ParallelStrategy()
    import torch.distributed as dist

    for tensor in weights(model).values():
        dist.broadcast(tensor, 0)
    return _Sharded(model, ranks, compute) if shard else _Replicated(model, ranks, compute)


class _CallModule(nn.Module):
    """Module whose forward pass calls a given function that uses the model.

    DDP and FSDP2 only support calls of `forward`. They wrap this module, so that an objective may call any method of
    its model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., T], *arguments: object) -> T:
        return function(*arguments)


class _Replicated(ParallelStrategy):
    def __init__(self, model: nn.Module, ranks: DistributedContext, compute: ComputeConfig) -> None:
        self._ranks = ranks
        self._norms = _synchronize_norms(model)
        # Buffers need no broadcast, because they are equal on all ranks. A parameter that a batch does not use gets no
        # gradient, as in a single process.
        self._model = nn.parallel.DistributedDataParallel(
            _CallModule(model), device_ids=[torch.cuda.current_device()] if compute.device_type == "cuda" else None,
            forward_sync_buffers=False, find_unused_parameters=True,
        )  # fmt: skip

    def compute(self, function: Callable[..., T], *arguments: object, counted: bool = True) -> T:
        for norm in self._norms:
            norm.counted = counted
        return self._model(function, *arguments) if torch.is_grad_enabled() else function(*arguments)

    def accumulation(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self._model.no_sync()

    def full_tensors(self, tensors: Mapping[str, Tensor], *, on_all_ranks: bool = False) -> dict[str, Tensor]:
        return dict(tensors) if on_all_ranks or self._ranks.first else {}

    def save(self, save: Callable[[], T]) -> T | None:
        return save() if self._ranks.first else None


class _Sharded(ParallelStrategy):
    """FSDP2 strategy for sharded weights.

    The weights of each block are gathered when the block runs; the other parameters are gathered once per pass. With
    bf16, blocks are gathered in bf16, but gradients are summed and weights are updated in float32.
    """

    def __init__(self, model: nn.Module, ranks: DistributedContext, compute: ComputeConfig) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        self._ranks, self._unwrapped = ranks, model
        self._norms = _synchronize_norms(model)
        mesh = init_device_mesh(compute.device_type, (ranks.world,))
        narrow = torch.bfloat16 if compute.precision == "bf16" else None
        policy = MixedPrecisionPolicy(
            param_dtype=narrow, reduce_dtype=torch.float32 if narrow else None, cast_forward_inputs=False
        )
        for stack in (module for module in model.modules() if isinstance(module, Stack)):
            for block in stack.blocks:
                fully_shard(block, mesh=mesh, mp_policy=policy)
        self._model: Any = fully_shard(
            _CallModule(model), mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False)
        )

    def compute(self, function: Callable[..., T], *arguments: object, counted: bool = True) -> T:
        for norm in self._norms:
            norm.counted = counted
        result = self._model(function, *arguments)
        if not torch.is_grad_enabled():
            self._model.reshard()  # During training, the backward pass frees the gathered weights.
        return result

    def full_tensor(self, tensor: Tensor) -> Tensor:
        sharded = as_sharded(tensor)
        return tensor if sharded is None else sharded.full_tensor()

    def full_tensors(self, tensors: Mapping[str, Tensor], *, on_all_ranks: bool = False) -> dict[str, Tensor]:
        gathered = {}
        for name, tensor in tensors.items():
            full = self.full_tensor(tensor).cpu()
            if on_all_ranks or self._ranks.first:
                gathered[name] = full
        return gathered

    def save(self, save: Callable[[], T]) -> T | None:
        computing = _CallModule(self._unwrapped)
        full = self.full_tensors(weights(computing))
        if not self._ranks.first:
            return None
        # Models tie weights by sharing a module. `tie_weights=True` would replace shared weights twice and restore them
        # wrongly.
        return torch.func.functional_call(computing, full, (save,), strict=False, tie_weights=False)


class _AllReduceSum(torch.autograd.Function):
    """Sum of a tensor over all ranks. In the backward pass, the gradient of the sum is sent to all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
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


class _SyncNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization with the mean and variance over the batches of all ranks.

    PyTorch's SyncBatchNorm is not used, because it supports only GPUs.
    """

    group: ProcessGroup
    counted: bool

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        x = input if input.dtype == torch.float64 else input.float()  # (B, C, ...)
        axes = [0, *range(2, x.ndim)]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        weight = float(self.counted)
        count = self._sum(x.new_tensor(weight * x.numel() / x.shape[1]))
        mean = self._sum(x.sum(axes) * weight) / count  # (C,)
        centered = x - mean.view(shape)
        variance = self._sum(centered.square().sum(axes) * weight) / count
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean), momentum)
            self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var), momentum)
        y = centered * (variance + self.eps).rsqrt().view(shape)
        return (y * self.weight.view(shape) + self.bias.view(shape)).to(input.dtype)

    def _sum(self, x: Tensor) -> Tensor:
        total = _AllReduceSum.apply(x, self.group)
        assert isinstance(total, Tensor)
        return total


def _synchronize_norms(model: nn.Module) -> Iterable[_SyncNorm]:
    """Convert every batch normalization of the model to a version that computes the mean and variance over all ranks.

    The means and variances are sent in a separate process group, so that they do not mix with the gradients.
    """
    import torch.distributed as dist

    kind = nn.modules.batchnorm._BatchNorm
    norms: list[Any] = [m for m in model.modules() if isinstance(m, kind) and not isinstance(m, FrozenNorm)]
    group = dist.new_group() if norms else None
    for norm in norms:
        if type(norm).forward is not kind.forward or not (norm.affine and norm.track_running_stats):
            raise UserError(
                f"{type(norm).__name__}: expected a plain BatchNorm with weights and statistics; training on several"
                " ranks would replace its computation. Train on one rank"
            )
        norm.__class__ = _SyncNorm
        norm.group, norm.counted = group, True
    return norms
