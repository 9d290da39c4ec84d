"""Data-parallel training over ranks with PyTorch's DistributedDataParallel or FSDP2 (`fully_shard`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from manyheads.core.block import Stack
from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError
from manyheads.training.distributed import DistributedContext
from manyheads.training.state import as_sharded, by_mesh, weights
from manyheads.training.tensor_parallel import check_degree, split_model
from manyheads.training.tuning import FrozenNorm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")


class ParallelStrategy:
    """Strategy for running the model in the training loop. This base class is for a single process.

    data_ranks  ranks among which the rows of a batch are divided
    """

    def __init__(self, ranks: DistributedContext) -> None:
        self.data_ranks = ranks

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

    def total_norm(self, gradients: Iterable[Tensor]) -> Tensor:
        """Return the norm of all gradients together. Collective: all ranks must call it."""
        return get_total_norm(gradients)

    def full_tensors(self, tensors: Mapping[str, Tensor], *, on_all_ranks: bool = False) -> dict[str, Tensor]:
        """Return the full tensors for the given sharded tensors, on rank 0 only, or on all ranks if `on_all_ranks`."""
        return dict(tensors)

    def save(self, save: Callable[[], T]) -> T | None:
        """Call a function that writes the model to disk. Only the rank that writes files calls it.

        During the call, the model has its full weights, even if training shards them.
        """
        return save()


def parallelize(
    model: nn.Module, ranks: DistributedContext, compute: ComputeConfig, *, shard: bool, tensor_parallel: int = 1
) -> ParallelStrategy:
    """Return the parallel strategy for these ranks, and copy the weights of rank 0 to all ranks.

    shard            if True, split parameters, gradients and optimizer state over the ranks (FSDP2). If False, each
                     rank has a copy of them (DDP)
    tensor_parallel  number of ranks over which each layer is split
    """
    check_degree(model, tensor_parallel, ranks.world)
    if tensor_parallel > 1 and compute.compiled:
        raise UserError("training.tensor_parallel does not support --compile: leave out one of them")
    if ranks.world == 1:
        return ParallelStrategy(ranks)
    import torch.distributed as dist

    for tensor in weights(model).values():
        dist.broadcast(tensor, 0)
    if shard or tensor_parallel > 1:
        return _Sharded(model, ranks, compute, shard=shard, tensor_parallel=tensor_parallel)
    return _Replicated(model, ranks, compute)


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
        super().__init__(ranks)
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
        return dict(tensors) if on_all_ranks or self.data_ranks.first else {}

    def save(self, save: Callable[[], T]) -> T | None:
        return save() if self.data_ranks.first else None


class _Sharded(ParallelStrategy):
    """FSDP2 strategy for sharded weights.

    The weights of each block are gathered when the block runs; the other parameters are gathered once per pass. With
    bf16, blocks are gathered in bf16, but gradients are summed and weights are updated in float32.

    With tensor parallelism, consecutive ranks have different parts of each layer, and the weights of each part are
    sharded or replicated over the other dimension of the mesh. FSDP2 does both, because DDP does not support DTensor.
    """

    def __init__(
        self,
        model: nn.Module,
        ranks: DistributedContext,
        compute: ComputeConfig,
        *,
        shard: bool,
        tensor_parallel: int,
    ) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        super().__init__(ranks)
        self._ranks, self._unwrapped = ranks, model
        self._norms = _synchronize_norms(model)
        data = ranks.world // tensor_parallel
        copies = {"shard": data} if shard else {"replicate": data, "shard": 1}
        sizes = copies | ({"tensor": tensor_parallel} if tensor_parallel > 1 else {})
        mesh = init_device_mesh(compute.device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if tensor_parallel > 1:
            group = mesh[next(iter(sizes))].get_group()
            self.data_ranks = DistributedContext(ranks.rank // tensor_parallel, data, ranks.local, group)
            split_model(model, mesh["tensor"])
            # PyTorch warns of collectives in two dimensions of a mesh, which are needed here.
            logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        self._model: Any = _CallModule(model)
        if data > 1:
            _shard(self._model, self._norms, mesh[tuple(copies)], compute)

    def compute(self, function: Callable[..., T], *arguments: object, counted: bool = True) -> T:
        for norm in self._norms:
            norm.counted = counted
        result = self._model(function, *arguments)
        if self.data_ranks.world > 1 and not torch.is_grad_enabled():
            self._model.reshard()  # During training, the backward pass frees the gathered weights.
        return result

    def total_norm(self, gradients: Iterable[Tensor]) -> Tensor:
        norms = [_full_tensor(get_total_norm(group)) for group in by_mesh(gradients)]
        return norms[0] if len(norms) == 1 else get_total_norm(norms)

    def full_tensors(self, tensors: Mapping[str, Tensor], *, on_all_ranks: bool = False) -> dict[str, Tensor]:
        gathered = {}
        for name, tensor in tensors.items():
            full = _full_tensor(tensor).cpu()
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


def _shard(model: _CallModule, norms: Iterable[_SyncNorm], mesh: DeviceMesh, compute: ComputeConfig) -> None:
    """Shard the weights of each block, and of the rest of the model, over the mesh (FSDP2)."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    narrow = torch.bfloat16 if compute.precision == "bf16" else None
    policy = MixedPrecisionPolicy(
        param_dtype=narrow, reduce_dtype=torch.float32 if narrow else None, cast_forward_inputs=False
    )
    for norm in norms:  # PyTorch's batch normalization of float32 tensors needs float32 weights.
        fully_shard(norm, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for block in stack.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))


def _full_tensor(tensor: Tensor) -> Tensor:
    sharded = as_sharded(tensor)
    return tensor if sharded is None else sharded.full_tensor()


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
            self.running_var.lerp_((variance * count / (count - 1).clamp(min=1)).to(self.running_var), momentum)
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
