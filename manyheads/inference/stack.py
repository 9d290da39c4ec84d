"""A stack of Transformer blocks with fused inference kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.cache import KVCache
from manyheads.core.layers import ACTIVATIONS, FeedForward
from manyheads.core.masks import Mask
from manyheads.core.runtime import ComputeConfig
from manyheads.core.tap import Tap
from manyheads.inference.cache import FusedCache
from manyheads.inference.kernels.arguments import GELU, GELU_TANH, RELU, SILU, Memory, Sizes, Weights
from manyheads.inference.kernels.compiled import Kernel
from manyheads.inference.kernels.packed import KINDS, MAX_SERIAL, PER_WORD, Workspace, get_team, pack_weights
from manyheads.inference.kernels.processor import FLOAT32
from manyheads.inference.linear import is_divisible
from manyheads.inference.onednn import ACTIVATION_NAMES, ONEDNN_ROWS, ROW_STEP, OneDnnBlock
from manyheads.inference.routes import Routes

run = Kernel("fused.run")

CODES: dict[Callable[[Tensor], Tensor], int] = {
    ACTIVATIONS[name]: code for name, code in (("relu", RELU), ("silu", SILU), ("gelu", GELU), ("gelu_tanh", GELU_TANH))
}
# maximum number of rows per call for whole sequences, so that intermediate results stay in the CPU caches
ROWS_AT_ONCE = 512
MIN_WORKER_ROWS = 64  # minimum number of rows of each thread that computes whole sequences
NO_MEMORY = Memory(
    np.zeros((1, 2), np.int64),
    np.zeros(1, np.bool_),
    np.zeros(3, np.int64),
    np.zeros((1, 1), np.int64),
    np.zeros(1, np.int64),
)


class FusedStack(Stack):
    """Stack of blocks with fused kernels. It keeps the original stack for features that the kernels do not support.

    stack    original stack
    blocks   blocks of the stack. Their linear layers are also used outside of the kernels, such as for the keys of the
             encoder output
    compute  compute settings of the model
    routes   measured times, which decide how the stack runs (`routes.py`)
    """

    def __init__(self, stack: Stack, blocks: nn.ModuleList, compute: ComputeConfig, routes: Routes) -> None:
        super().__init__([], None)
        self.plain, self.tap = stack, stack.tap
        self.blocks, self.norm = blocks, stack.norm
        team = self._team = get_team(compute.threads)
        self._plain_compute = plain_settings(compute)
        (self.sequences, self.steps), self._lead = routes.best(), routes.lead
        first = stack.blocks[0]
        assert isinstance(first, Block)
        feed_forward = first.feed_forward
        assert isinstance(feed_forward, FeedForward)
        cross, width = first.cross, first.attention.output.out_features
        self._dtype = torch.bfloat16 if compute.precision == "bf16" else torch.float32
        kind = KINDS[compute.precision]
        self._sizes = Sizes(
            kind, len(stack.blocks), first.attention.heads, width, int(cross is not None), cross.heads if cross else 1,
            int(first.norm_first), int(stack.norm is not None), CODES[feed_forward.activation],
        )  # fmt: skip
        inner, hidden = first.attention.value.out_features, feed_forward.expand.out_features
        cross_width = cross.value.out_features if cross else 1
        self._head_width = max(first.attention.head_width, cross.head_width if cross else 1)
        left = -(-max(width, inner, hidden, cross_width) // PER_WORD[kind]) * 4
        self._workspace = Workspace(team.size, left, 3 * inner, inner, cross_width, hidden, width)
        self._taps = [module for module in stack.modules() if isinstance(module, Tap)]
        self._products = sum(
            module.weight.numel() for block in stack.blocks for module in block.modules()
            if isinstance(module, nn.Linear)
        )  # fmt: skip

    @cached_property
    def _weights(self) -> Weights:
        """Weights of the kernels, packed in the first call that needs them."""
        blocks, norm = [block for block in self.plain.blocks if isinstance(block, Block)], self.plain.norm
        first, cross = blocks[0], blocks[0].cross
        assert norm is None or isinstance(norm, nn.LayerNorm)
        return pack_weights(
            [_parts(block) for block in blocks], self._sizes.kind, None if norm is None else _affine(norm),
            (_norms(first)[0].eps, 0.0 if norm is None else norm.eps),
            (first.attention.head_width**-0.5, cross.head_width**-0.5 if cross else 1.0),
        )  # fmt: skip

    @cached_property
    def _onednn_blocks(self) -> list[OneDnnBlock]:
        """Blocks with weights in the layout of oneDNN, packed in the first call that needs them."""
        return [
            OneDnnBlock(
                _norms(block)[::2], [part for part in _parts(block)[1] if len(part[0])],
                block.attention.heads, block.norm_first, ACTIVATION_NAMES[block.feed_forward.activation], self._dtype,
            )
            for block in self.plain.blocks
            if isinstance(block, Block) and block.feed_forward is not None
        ]  # fmt: skip

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the same result as `Stack.forward`, by the fastest route.

        The kernels support two kinds of masks: causal order and key lengths. The original stack computes all other
        cases: a bias, positions, other masks, cross-attention without a cache, and blocks that are recorded or edited.
        """
        rule = Mask() if mask is None else mask
        tapped = any(tap.is_active for tap in self._taps)
        unsupported = any(
            part is not None for part in (bias, positions, memory, rule.window, rule.segments, rule.dense)
        ) or (cache is None and rule.offset is not None)  # fmt: skip
        is_plain = self.sequences == "plain" if cache is None else not isinstance(cache, FusedCache)
        if tapped or unsupported or is_plain or x.dtype == torch.float64 or not x.numel():
            # Recorded and edited activations come from the original stack, without rounding to bf16.
            with self._plain_compute.settings() if tapped else self._plain_compute.autocast():
                return self.plain(
                    x, mask=mask, bias=bias, memory=memory, memory_mask=memory_mask, cache=cache, positions=positions
                ).to(x.dtype)  # (B, T, D)  # fmt: skip
        x = x.detach().float()
        return self._read(x, rule) if cache is None else self._step(x, cache)

    def new_cache(self, batch: int, capacity: int, like: Tensor) -> KVCache:
        if self.steps == "plain":
            return self.plain.new_cache(batch, capacity, like)
        layers, heads, head_width = self.plain.cache_sizes
        return FusedCache(layers, batch, heads, capacity, head_width, half=self._sizes.kind != FLOAT32)

    def _read(self, x: Tensor, rule: Mask) -> Tensor:
        """Apply the stack to whole sequences. Padding positions are not computed, and their output is zero."""
        batch, longest, _ = x.shape
        if rule.key_lengths is None:
            lengths, rows, real = np.full(batch, longest), x.reshape(batch * longest, -1).clone(), None
        else:
            lengths = np.minimum(rule.key_lengths.cpu().numpy(), longest)
            real = torch.arange(longest) < torch.from_numpy(lengths)[:, None]  # (B, T)
            rows = x[real]  # (N, D)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # If there is enough work for each thread, the threads are workers: each computes whole sequences alone, and
        # none waits for another.
        threads = self._team.threads
        workers = min(threads, batch, len(rows) // MIN_WORKER_ROWS)
        by_onednn = self.sequences == "onednn" and workers > 0 and self._lead * workers >= threads
        if by_onednn or (workers == threads and len(rows) >= MIN_WORKER_ROWS * threads**2):
            blocks = self._onednn_blocks if by_onednn else None
            self._team.work(partial(self._read_part, rows, starts, rule.causal, blocks), workers)
        else:
            self._read_part(rows, starts, rule.causal, None, 0, 1)
        if real is None:
            return rows.view_as(x)
        return torch.zeros_like(x).masked_scatter_(real[..., None], rows)

    @torch.inference_mode()
    def _read_part(
        self, rows: Tensor, starts: NDArray[np.int64], causal: bool, blocks: Sequence[OneDnnBlock] | None, worker: int,
        workers: int,
    ) -> None:  # fmt: skip
        """Apply the stack in place to the sequences of one worker. Each worker has about the same number of rows.

        blocks  blocks with oneDNN's matrix products. If None, the fused kernels are used
        """
        first, last = np.searchsorted(starts, [len(rows) * i // workers for i in (worker, worker + 1)])
        most = ROWS_AT_ONCE if blocks is None else ONEDNN_ROWS
        for begin, end in _pieces(starts, int(first), int(last), most):
            part, lengths = rows[starts[begin] : starts[end]], np.diff(starts[begin : end + 1])
            if blocks is None:
                self._run(part, starts[begin : end + 1] - starts[begin], int(lengths.max()), causal)
                continue
            if torch.get_num_threads() != 1:
                torch.set_num_threads(1)
            x = F.pad(part, (0, 0, 0, -len(part) % ROW_STEP))
            for block in blocks:
                x = block(x, lengths.tolist(), causal)
            x = x if self.norm is None else self.norm(x)
            part.copy_(x[: len(part)])

    def _step(self, x: Tensor, cache: KVCache) -> Tensor:
        """Apply the stack to the next positions of every row, using the key-value cache."""
        batch, new, width = x.shape
        assert isinstance(cache, FusedCache)
        entries, slots = cache.reserve(new)
        assert entries.stride(5) == 1
        lengths = cache.lengths.numpy()
        layers = np.arange(entries.shape[0])[:, None] * entries.stride(0) + np.arange(2)[None] * entries.stride(1)
        memory = Memory(
            entries.data_ptr() + entries.element_size() * layers.astype(np.int64),
            np.array([entries.dtype == torch.bfloat16]),
            np.array([entries.stride(2), entries.stride(3), entries.stride(4)]),
            np.zeros((batch, 1), np.int64) if slots is None else slots.numpy(),
            lengths,
        )
        rows = x.reshape(batch * new, width).clone()
        starts = np.arange(batch + 1) * new
        source, keys = NO_MEMORY, int(lengths.max()) + new
        if self._sizes.cross:
            source = _source(cache)
            keys = max(keys, int(source.lengths.max()))
        self._run(rows, starts, keys, True, memory, source)
        return rows.view(batch, new, width)

    def _run(
        self, rows: Tensor, starts: NDArray[np.int64], keys: int, causal: bool, memory: Memory = NO_MEMORY,
        source: Memory = NO_MEMORY,
    ) -> None:  # fmt: skip
        if memory is NO_MEMORY:
            memory = NO_MEMORY._replace(slots=np.zeros((len(starts) - 1, 1), np.int64))
        if not len(rows):
            return
        threads = 1 if len(rows) * self._products < MAX_SERIAL else self._team.threads
        scratch = self._workspace.of(len(rows), keys, self._head_width)
        self._team.run(
            run, threads, self._sizes, self._weights, rows.numpy(), starts, causal,
            memory.addresses is not NO_MEMORY.addresses, memory, source, scratch,
        )  # fmt: skip


def _pieces(starts: NDArray[np.int64], begin: int, last: int, rows: int) -> Iterator[tuple[int, int]]:
    """Divide the sequences from `begin` to `last` into groups of at most `rows` rows; yield (begin, end) of each group.

    A sequence with more rows forms its own group.
    """
    while begin < last:
        end = max(begin + 1, min(last, int(np.searchsorted(starts, starts[begin] + rows, "right")) - 1))
        yield begin, end
        begin = end


def plain_settings(compute: ComputeConfig) -> ComputeConfig:
    """Return the settings for PyTorch's modules, which have no 8-bit products."""
    return replace(compute, precision="float32") if compute.precision == "int8" else compute


def is_fusible(stack: Stack, precision: str) -> bool:
    """Return True if the kernels support a stack in a precision.

    They support `Stack`, `Block`, `FeedForward` and `Attention`, but not their subclasses.
    """
    blocks = list(stack.blocks)
    if type(stack) is not Stack or stack.biased or not blocks or any(type(block) is not Block for block in blocks):
        return False
    shapes = set()
    for block in blocks:
        assert isinstance(block, Block)
        feed_forward, attentions = block.feed_forward, [block.attention, *([block.cross] if block.cross else [])]
        if type(feed_forward) is not FeedForward or feed_forward.activation not in CODES:
            return False
        if type(block.attention_norm) is not nn.LayerNorm:
            return False
        for attention in attentions:
            if type(attention) is not Attention or attention.query.out_features != attention.value.out_features:
                return False
        own = block.attention
        # The query, key and value layers become one matrix product, so all three or none must have a bias.
        if len({layer.bias is None for layer in (own.query, own.key, own.value)}) > 1:
            return False
        linears = [module for module in block.modules() if isinstance(module, nn.Linear)]
        if not all(is_divisible(module, precision) for module in linears):
            return False
        shapes.add(
            (
                block.norm_first, feed_forward.activation, block.cross is not None, block.attention_norm.eps,
                *(attention.heads for attention in attentions), *(module.weight.shape for module in linears),
            )
        )  # fmt: skip
    return len(shapes) == 1


def _parts(block: Block) -> tuple[list[Tensor], list[tuple[Tensor, Tensor | None]]]:
    """Return the norms and the matrix products of a block in the order that `kernels/fused.py` defines.

    The factors of a layer scale are multiplied into the weights.
    """
    attention, cross, feed_forward = block.attention, block.cross, block.feed_forward
    assert isinstance(feed_forward, FeedForward)
    three = (attention.query, attention.key, attention.value)
    bias = None if attention.query.bias is None else torch.cat([layer.bias for layer in three])
    qkv = torch.cat([layer.weight for layer in three]), bias
    unused = (torch.zeros(0, attention.query.in_features), None)
    products = [
        qkv,
        _scaled(attention.output, block.attention_scale),
        unused if cross is None else (cross.query.weight, cross.query.bias),
        unused if cross is None else (cross.output.weight, cross.output.bias),
        (feed_forward.expand.weight, feed_forward.expand.bias),
        _scaled(feed_forward.contract, block.feed_forward_scale),
    ]
    return [part for norm in _norms(block) for part in _affine(norm)], products


def _norms(block: Block) -> tuple[nn.LayerNorm, nn.LayerNorm, nn.LayerNorm]:
    """Return the norms of self-attention, of cross-attention (without it, the first again), and of the feed-forward."""
    first, cross, last = block.attention_norm, block.cross_norm or block.attention_norm, block.feed_forward_norm
    assert isinstance(first, nn.LayerNorm)
    assert isinstance(cross, nn.LayerNorm)
    assert isinstance(last, nn.LayerNorm)
    return first, cross, last


def _scaled(layer: nn.Linear, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if scale is None:
        return layer.weight, layer.bias
    return layer.weight * scale[:, None], None if layer.bias is None else layer.bias * scale


def _affine(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    weight, bias = norm.weight, norm.bias
    return weight, torch.zeros_like(weight) if bias is None else bias


def _source(cache: FusedCache) -> Memory:
    entries, rows, lengths = cache.sources()
    key = entries[0][0]
    count = np.full(len(rows), key.shape[2]) if lengths is None else lengths[rows].numpy()
    return Memory(
        np.array([[k.data_ptr(), v.data_ptr()] for k, v in entries]), np.array([key.dtype == torch.bfloat16]),
        np.array(key.stride()[:3]),
        rows.numpy()[:, None], count,
    )  # fmt: skip
