"""Model with known heads: attention-only GPT whose weights are set by hand to continue a repeated text by induction."""

from __future__ import annotations

import torch

from manyheads.core.block import Block
from manyheads.models.gpt import GPT, GPTConfig

TOKENS, POSITIONS = 8, 16
WIDTH = 2 * TOKENS + POSITIONS  # the token, the previous token, and the position, each as a one-hot vector
SHARP = 30.0  # factor of queries, so that attention is almost a choice of one token


def induction_gpt() -> GPT:
    """Return a GPT of two layers with two heads. Head 0 of layer 0 copies the previous token into the residual stream.

    Head 0 of layer 1 attends to the positions whose previous token is the current token, and predicts their token.
    The other two heads write nothing.
    """
    model = GPT(
        GPTConfig(TOKENS, width=WIDTH, layers=2, heads=2, feed_forward="none", max_positions=POSITIONS, dropout=0.0)
    )
    token, previous, position = (
        torch.eye(WIDTH)[begin : begin + size]
        for begin, size in ((0, TOKENS), (TOKENS, TOKENS), (2 * TOKENS, POSITIONS))
    )  # (size, D) each: a linear layer with these rows reads a one-hot vector
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for norm in model.modules():
            if isinstance(norm, torch.nn.LayerNorm):
                norm.weight.fill_(1.0)
        model.embedding.weight.copy_(token)
        model.positions.table.copy_(position)
        first, second = (block.attention for block in model.decoder.blocks if isinstance(block, Block))
        first.query.weight[:POSITIONS] = SHARP * position
        first.key.weight[1:POSITIONS] = position[:-1]  # The query of position i meets the key of position i - 1.
        first.value.weight[:TOKENS] = token
        first.output.weight[:, :TOKENS] = previous.T
        second.query.weight[:TOKENS] = SHARP * token
        second.key.weight[:TOKENS] = previous
        second.value.weight[:TOKENS] = token
        second.output.weight[:, :TOKENS] = token.T
    return model.eval()
