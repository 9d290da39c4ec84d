"""Transformer blocks: attention and feed-forward layers with residual connections, and stacks of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from manyheads.core.attention import Attention, added
from manyheads.core.cache import KVCache
from manyheads.core.dropout import drop_path, dropout
from manyheads.core.experts import Experts
from manyheads.core.layers import BatchNorm, FeedForward
from manyheads.core.masks import Mask
from manyheads.core.tap import Tap
from manyheads.errors import UserError


class Block(nn.Module):
    """Transformer block: self-attention, optional cross-attention and a feed-forward network.

    Each sublayer has a residual connection and a norm. If `feed_forward` is None, the block has only attention.

    norm       "post": norm(x + f(x)) as Vaswani 2017, section 3.1; "pre": x + f(norm(x)).
    dropout    probability of dropping an element of a sublayer's output during training (section 5.4).
    drop_path  probability of skipping a sublayer for an item of the batch during training (stochastic depth).
    scale      initial value of learned factors, one per channel, for the outputs of self-attention and the feed-forward
               network (Touvron 2021, "Going deeper with Image Transformers", section 2.1). By default, there are no
               such factors
    norm_type  class of the norms: `nn.LayerNorm` or a subclass, `BatchNorm`, or `nn.Identity` for none
    """

    def __init__(
        self,
        attention: Attention,
        feed_forward: FeedForward | Experts | None,
        cross: Attention | None = None,
        *,
        norm: Literal["post", "pre"] = "post",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        scale: float | None = None,
        norm_eps: float = 1e-5,
        norm_type: Callable[..., nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        if norm not in ("post", "pre"):
            raise UserError(f"expected norm 'post' or 'pre', found {norm!r}")
        width = attention.output.out_features
        self.norm_first = norm == "pre"
        self.dropout = dropout
        self.drop_path = drop_path
        self.attention = attention
        self.attention_norm = norm_type(width, eps=norm_eps)
        self.cross = cross
        self.cross_norm = None if cross is None else norm_type(width, eps=norm_eps)
        self.feed_forward = feed_forward
        self.feed_forward_norm = None if feed_forward is None else norm_type(width, eps=norm_eps)
        self.attention_scale = None if scale is None else nn.Parameter(torch.full((width,), scale))
        self.feed_forward_scale = None if scale is None else nn.Parameter(torch.full((width,), scale))
        self.tap = Tap("residual")  # hook that records or edits the output of the block

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        positions: Tensor | None = None,
        memory_positions: Tensor | None = None,
    ) -> Tensor:
        """Apply the block to x (B, T, D) and return (B, T, D).

        positions         vectors (B, T, D) that are added to the queries and keys of self-attention and to the queries
                          of cross-attention, but not to values. By default, `x` contains its positions
        memory_positions  vectors that are added to the keys of cross-attention

        With a key-value cache, x contains only the new positions, and cross-attention reads keys and values from the
        cache instead of computing them from `memory`.
        """

        def self_attention(x: Tensor) -> Tensor:
            key, value = self.attention.project_keys_values(x, positions)
            if cache is not None:
                key, value = cache.append(layer, key, value)
            return self.attention.forward_cached(added(x, positions), key, value, mask=mask, bias=bias)

        def cross_attention(x: Tensor) -> Tensor:
            assert self.cross is not None
            if cache is not None:
                return self.cross.forward_cached(x, *cache.cross(layer), mask=memory_mask)
            assert memory is not None
            query = added(x, positions)
            crossed: Tensor = self.cross(query, memory, mask=memory_mask, memory_positions=memory_positions)
            return crossed

        norm = _on_real_tokens(self.attention_norm, mask, cache)
        x = self._residual(x, self_attention, norm, self.attention_scale)
        if self.cross_norm is not None:
            x = self._residual(x, cross_attention, _on_real_tokens(self.cross_norm, mask, cache))
        return self.tap.on("residual", self._transition(x, mask, cache, layer))

    def _transition(self, x: Tensor, mask: Mask | None, cache: KVCache | None, layer: int) -> Tensor:
        """Apply the last sublayer of the block, by default the feed-forward network.

        The arguments mask and cache are for subclasses whose last sublayer mixes neighboring positions.
        """
        if self.feed_forward is None or self.feed_forward_norm is None:
            return x
        feed_forward, norm = (_on_real_tokens(m, mask, cache) for m in (self.feed_forward, self.feed_forward_norm))
        return self._residual(x, feed_forward, norm, self.feed_forward_scale)

    def _residual(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: Callable[[Tensor], Tensor],
        scale: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        branch = sublayer(_cast_once(norm(x) if self.norm_first else x))
        branch = branch if scale is None else branch * scale
        x = x + drop_path(dropout(branch, self.dropout, self.training), self.drop_path, self.training)
        return x if self.norm_first else norm(x)


def _on_real_tokens(module: nn.Module, mask: Mask | None, cache: KVCache | None) -> Callable[[Tensor], Tensor]:
    """Return a module that ignores padding. Batch normalization and experts need the lengths of the texts for that."""
    if isinstance(module, BatchNorm | Experts) and mask is not None and cache is None:
        return partial(module, lengths=mask.key_lengths)
    return module


def _cast_once(x: Tensor) -> Tensor:
    """Convert the input of a sublayer to the precision of autocast. Otherwise each linear layer would convert it."""
    device = x.device.type
    if x.dtype != torch.float32 or x.is_meta or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


class Stack(nn.Module):
    """Sequence of Transformer blocks with an optional final norm.

    biased  True if the model passes an attention bias to `forward`. The compiled kernels do not support a bias, so
            the package `inference` does not replace such a stack by compiled kernels.

    If `checkpointing` is set, the backward pass recomputes each block instead of storing its activations (Chen 2016,
    "Training Deep Nets with Sublinear Memory Cost"). Training then computes a third more matrix products, but stores
    only the input of each block and the activations of one block at a time.
    """

    def __init__(self, blocks: Sequence[Block], norm: nn.Module | None = None, *, biased: bool = False) -> None:
        super().__init__()
        self.biased = biased
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.checkpointing = False
        self.first = 0  # index of the first block that `forward` runs; see `starting_at`
        self.tap = Tap("residual")  # hook that records or edits the input of the first block

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
        """Apply all blocks to x (B, T, D) and return (B, T, D).

        With a key-value cache, the caller advances the cache once after this call, when all layers have appended.
        """
        recompute = self.checkpointing and torch.is_grad_enabled() and cache is None and not self._has_active_tap()
        x = self.tap.on("residual", x)
        blocks = [*enumerate(zip(self.blocks, self.masks(mask), strict=True))]
        for layer, (block, mask_of_block) in blocks[self.first :]:
            apply = partial(checkpoint, block, use_reentrant=False) if recompute else block
            x = apply(
                x, mask=mask_of_block, bias=bias, memory=memory, memory_mask=memory_mask, cache=cache, layer=layer,
                positions=positions,
            )  # (B, T, D)  # fmt: skip
        return x if self.norm is None else _on_real_tokens(self.norm, mask, cache)(x)

    def states(self, x: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None) -> list[Tensor]:
        """Return the input of the first block and the output of each block, each (B, T, D), before the final norm."""
        states = [self.tap.on("residual", x)]
        for block, mask_of_block in zip(self.blocks, self.masks(mask), strict=True):
            states.append(block(states[-1], mask=mask_of_block, bias=bias))
        return states

    def masks(self, mask: Mask | None) -> list[Mask | None]:
        """Return the mask of each block, given the mask of the whole stack."""
        return [mask] * len(self.blocks)

    def new_cache(self, batch: int, capacity: int, like: Tensor) -> KVCache:
        """Return an empty key-value cache for at most `capacity` positions, with the dtype and device of `like`.

        Under autocast, it has the dtype in which autocast computes keys and values.
        """
        layers, heads, head_width = self.cache_sizes
        autocasts = like.dtype == torch.float32 and torch.is_autocast_enabled(like.device.type)
        dtype = torch.get_autocast_dtype(like.device.type) if autocasts else like.dtype
        return KVCache(layers, batch, heads, capacity, head_width, dtype=dtype, device=like.device)

    @property
    def cache_sizes(self) -> tuple[int, int, int]:
        """Return the sizes of a key-value cache for this stack: number of layers, number of heads, and head width.

        The head width is the larger of key width and value width.
        """
        first = self.blocks[0]
        assert isinstance(first, Block)
        attention = first.attention
        return len(self.blocks), attention.heads, max(attention.head_width, attention.key_width)

    def _has_active_tap(self) -> bool:
        """Return True if activations inside this stack are being recorded or edited.

        Gradient checkpointing is then disabled: it would run each block again in the backward pass, and record it
        twice.
        """
        return any(isinstance(module, Tap) and module.is_active for module in self.modules())


class BandedStack(Stack):
    """Stack in which every second block, from the second, attends only to near tokens (Brown 2020, section 2.1).

    window  number of tokens that these blocks attend to: the token itself, and the tokens before it

    The compiled kernels and the recorded steps of a GPU have one mask for all blocks, so this stack runs in PyTorch.
    """

    def __init__(self, blocks: Sequence[Block], norm: nn.LayerNorm | None = None, *, window: int) -> None:
        super().__init__(blocks, norm)
        self.window = window

    def masks(self, mask: Mask | None) -> list[Mask | None]:
        mask = mask or Mask()
        banded = mask & Mask(window=self.window - 1, offset=mask.offset)
        return [banded if layer % 2 else mask for layer in range(len(self.blocks))]


@contextmanager
def starting_at(stack: Stack, layer: int) -> Iterator[None]:
    """Run only the blocks from index `layer` on while the `with` block runs, so that the input of this block is reused.

    An edit of the input of the stack (`manyheads.edit`) supplies the input of this block. With the number of blocks as
    `layer`, only the final norm runs.
    """
    stack.first = layer
    try:
        yield
    finally:
        stack.first = 0


def trainable_stacks(model: nn.Module) -> list[Stack]:
    """Return the stacks of blocks in a model that have trainable parameters.

    Gradient checkpointing of these stacks saves memory. A stack with batch normalization is excluded: to recompute its
    blocks would update the running statistics twice in a step.
    """
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    stacks = [stack for stack in stacks if not any(isinstance(part, BatchNorm) for part in stack.modules())]
    return [stack for stack in stacks if any(parameter.requires_grad for parameter in stack.parameters())]
