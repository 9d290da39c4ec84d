"""Transformers that lack a part. They have the names of the weights of `Transformer`, but another class.

The class is important: `directory.save` refuses it, so that no such model is opened as a complete Transformer later.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block
from manyheads.core.dropout import dropout
from manyheads.core.masks import Mask
from manyheads.core.positions import PositionTable
from manyheads.models.transformer import NORMS, Transformer, TransformerConfig


class NoResidual(Transformer):
    """Transformer without residual connections: a sublayer replaces its input."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        _replace_blocks(self, NoResidualBlock)


class NoFeedForward(Transformer):
    """Transformer whose blocks have only attention."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        _replace_blocks(self, Block, feed_forward=False)


class NoScale(Transformer):
    """Transformer whose attention scores are not divided by the square root of the key width."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        for stack in (self.encoder, self.decoder):
            for block in stack.blocks:
                assert isinstance(block, Block)
                block.attention = _unscaled(config, block.attention)
                block.cross = None if block.cross is None else _unscaled(config, block.cross)


class NoPositions(Transformer):
    """Transformer that adds no position vectors. Its encoder treats a text as a bag of words."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.positions = Unplaced(config.max_positions, config.width)


MODELS: dict[str, type[Transformer]] = {
    "nothing": Transformer, "residual": NoResidual, "scale": NoScale, "feed_forward": NoFeedForward,
    "positions": NoPositions,
}  # fmt: skip


class NoResidualBlock(Block):
    """Block without residual connections: f(norm(x)), or norm(f(x)) with post-norm."""

    def _residual(
        self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: Callable[[Tensor], Tensor],
        scale: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        branch = dropout(sublayer(norm(x) if self.norm_first else x), self.dropout, self.training)
        return branch if self.norm_first else norm(branch)


class UnscaledAttention(Attention):
    """Attention with plain products of queries and keys as scores."""

    def forward_cached(
        self, x: Tensor, key: Tensor, value: Tensor, *, mask: Mask | None = None, bias: Tensor | None = None
    ) -> Tensor:
        # `attend` divides the scores by this factor.
        return super().forward_cached(x, key * sqrt(self.key_width), value, mask=mask, bias=bias)


class Unplaced(PositionTable):
    """Position table that changes nothing."""

    def forward(self, x: Tensor, offset: int | Tensor | None = None) -> Tensor:
        return x


def _replace_blocks(model: Transformer, kind: type[Block], *, feed_forward: bool = True) -> None:
    """Build the blocks of a model again as another class, with the same weights."""
    c = model.config
    for stack in (model.encoder, model.decoder):
        blocks = [block for block in stack.blocks if isinstance(block, Block)]
        stack.blocks = nn.ModuleList(
            kind(
                block.attention, block.feed_forward if feed_forward else None, block.cross, norm=c.norm,
                dropout=c.dropout, norm_eps=c.norm_eps, norm_type=NORMS[c.normalization],
            )
            for block in blocks
        )  # fmt: skip


def _unscaled(c: TransformerConfig, attention: Attention) -> Attention:
    """Return an attention layer with the same weights, but without scaling."""
    other = UnscaledAttention(
        c.width, attention.heads, key_width=c.key_width, bias=c.attention_bias, dropout=c.attention_dropout
    )
    other.load_state_dict(attention.state_dict())
    return other
