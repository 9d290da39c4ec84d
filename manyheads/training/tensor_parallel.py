"""Tensor parallelism: each layer is split over the ranks of a tensor group (Megatron-LM, Shoeybi 2019, section 3).

    attention       query, key, value by columns | heads of this rank | output by rows
    feed-forward    expand by columns | hidden units of this rank | contract by rows
    vocabulary      rows of the token embedding, and of the output projection with the cross-entropy

The input of a column-parallel layer is equal on all ranks. A row-parallel layer adds the outputs of the ranks, so its
output is equal on all ranks, too. PyTorch's DTensor sends everything between the ranks. All other parameters, such as
norms and position tables, are equal on all ranks.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.interface import HasOutputWeights, OutputProjection
from manyheads.core.layers import FeedForward, TokenEmbedding
from manyheads.core.low_rank import LowRankLinear
from manyheads.errors import UserError
from manyheads.training.state import as_sharded

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

# Number of token positions per chunk of the loss. It is large, because the ranks exchange sums for each chunk.
CHUNK = 8192


def check_degree(model: nn.Module, degree: int, world: int) -> None:
    """Raise UserError if a model cannot be split over `degree` ranks, or the number of ranks `world` into such groups.

    The vocabulary may be uneven: the last rank then has fewer tokens.
    """
    if degree == 1:
        return
    found = f"training.tensor_parallel={degree}"
    if world % degree:
        raise UserError(
            f"{found} does not divide the number of processes, {world}: set --processes to a multiple of it"
        )
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    others = [m for m in model.modules() if isinstance(m, LowRankLinear | nn.modules.batchnorm._BatchNorm)]
    if not stacks or others or not all(map(_is_standard, stacks)):
        raise UserError(
            f"{found}: {type(model).__name__} with these settings cannot be split. Supported are models of standard "
            "Transformer blocks, such as GPT, BERT and the Transformer, without experts, batch normalization, "
            "attention biases or LoRA"
        )
    sizes = [(module.heads, "heads") for module in model.modules() if isinstance(module, Attention)]
    sizes += [(m.expand.out_features, "feed-forward units") for m in model.modules() if isinstance(m, FeedForward)]
    for size, name in sizes:
        if size % degree:
            raise UserError(f"{found} does not divide {size} {name}: choose a divisor, or change the model")
    for module in model.modules():
        if not isinstance(module, TokenEmbedding):
            continue
        rows = -(-module.num_embeddings // degree)  # of each rank; the last rank has the remaining ones
        if rows * (degree - 1) >= module.num_embeddings:
            raise UserError(f"{found} is too large for a vocabulary of {module.num_embeddings} tokens")


def _is_standard(stack: Stack) -> bool:
    """Return True if a stack has blocks of attention and dense feed-forward networks only, and no attention bias."""
    return not stack.biased and all(type(b) is Block and type(b.feed_forward) is FeedForward for b in stack.blocks)


def split_model(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the layers of a model over the ranks of a one-dimensional mesh. The ranks must have equal weights."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for module in list(model.modules()):
        if isinstance(module, Attention):
            inner = dict.fromkeys(("query", "key", "value"), ColwiseParallel())
            parallelize_module(module, mesh, inner | {"output": RowwiseParallel()}, src_data_rank=None)
            module.heads //= mesh.size()
            if module.dropout:
                _draw_separately(module.query, module.output, mesh.get_local_rank())
        elif isinstance(module, FeedForward):
            plan = {"expand": ColwiseParallel(), "contract": RowwiseParallel()}
            parallelize_module(module, mesh, plan, src_data_rank=None)
            if module.dropout:
                _draw_separately(module.expand, module.contract, mesh.get_local_rank())
        elif isinstance(module, TokenEmbedding):
            parallelize_module(module, mesh, RowwiseParallel(input_layouts=Replicate()), src_data_rank=None)
    for parent in list(model.modules()):
        for name, module in parent.named_children():
            if isinstance(module, OutputProjection):
                setattr(parent, name, SplitProjection())


class SplitProjection(OutputProjection):
    """Output projection with a matrix whose rows are split over ranks. All ranks get all logits."""

    def forward(self, hidden: Tensor, model: HasOutputWeights) -> Tensor:
        weight = as_sharded(model.output_weight)
        if weight is None:
            return super().forward(hidden, model)
        return _full(_logits(hidden, weight, model.output_bias))


def split_vocabulary_loss(
    hidden: Tensor, weight: DTensor, bias: Tensor | None, target: Tensor, *, smoothing: float, pad: int | None
) -> Tensor:
    """Return the sum of the label-smoothed cross-entropy over N positions, for a matrix that is split over ranks.

    The arguments are those of `vocabulary_loss`. If there is more than one chunk of positions, the backward pass
    computes the logits again, so that the logits of only one chunk are in memory.
    """
    loss = partial(_chunk_loss, weight=weight, bias=bias, smoothing=smoothing, pad=pad)
    if len(hidden) <= CHUNK:
        return loss(hidden, target)
    chunks = zip(hidden.split(CHUNK), target.split(CHUNK), strict=True)
    return torch.stack([checkpoint(loss, h, t, use_reentrant=False) for h, t in chunks]).sum()


def _chunk_loss(
    hidden: Tensor, target: Tensor, *, weight: DTensor, bias: Tensor | None, smoothing: float, pad: int | None
) -> Tensor:
    """Return the sum of the loss over some positions.

    With logits z and the smoothed probabilities q, which sum to 1, the loss is logsumexp(z) - sum(q * z). For each
    position, the ranks send each other only the maximum and two sums over their tokens.
    """
    from torch.distributed.tensor import Shard, distribute_tensor

    tokens = len(weight)
    logits = _logits(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    ids = distribute_tensor(
        torch.arange(tokens, device=hidden.device), weight.device_mesh, [Shard(0)], src_data_rank=None
    )
    smoothed = (ids == _replicated(target, weight)[:, None]).to(logits.dtype) * (1.0 - smoothing)  # (N, V)
    masked = logits
    if pad is not None:
        smoothed = smoothed + (ids != pad).to(logits.dtype) * (smoothing / (tokens - 1))
        masked = torch.where(ids == pad, -torch.inf, logits)
    peak = masked.detach().amax(-1, keepdim=True)
    log_sum = (masked - peak).exp().sum(-1, keepdim=True).log() + peak  # (N, 1)
    # FSDP2 needs a loss that is not a view.
    return _full((log_sum - (smoothed * logits).sum(-1, keepdim=True)).sum()).clone()


def _logits(hidden: Tensor, weight: DTensor, bias: Tensor | None) -> Tensor:
    """Return the logits (..., V) of hidden states (..., D). Each rank computes the logits of its tokens."""
    return F.linear(_replicated(hidden, weight), weight, None if bias is None else _replicated(bias, weight))


def _full(x: Tensor) -> Tensor:
    sharded = as_sharded(x)
    assert sharded is not None
    return sharded.full_tensor()


def _draw_separately(first: nn.Module, last: nn.Module, rank: int) -> None:
    """Draw different random numbers on each rank between two layers, where the ranks have different activations.

    Elsewhere, the ranks draw equal numbers, so that dropout leaves the activations equal that all of them have.
    """
    region = ExitStack()

    def enter(module: nn.Module, inputs: object, output: Tensor) -> None:
        if module.training:
            seed = int(torch.randint(2**62, ()))  # equal on all ranks
            region.enter_context(torch.random.fork_rng([output.device] if output.is_cuda else []))
            torch.manual_seed(seed + rank)

    first.register_forward_hook(enter)
    last.register_forward_pre_hook(lambda *_: region.close())


def _replicated(x: Tensor, like: DTensor) -> DTensor:
    """Return a tensor that is equal on all ranks of the mesh of `like` as a DTensor."""
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(x, like.device_mesh, [Replicate()], run_check=False)
