"""Copying of weights from PyTorch's Transformer modules into our models, to compare their outputs."""

import torch
from torch import nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack


def port_attention(theirs: nn.MultiheadAttention, ours: Attention) -> None:
    """`theirs` keeps query, key and value in one matrix, or in three where their input widths differ."""
    if theirs.in_proj_weight is not None:
        matrices = theirs.in_proj_weight.chunk(3)
    else:
        matrices = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
    with torch.no_grad():
        for layer, weight, bias in zip(
            (ours.query, ours.key, ours.value), matrices, theirs.in_proj_bias.chunk(3), strict=True
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    ours.output.load_state_dict(theirs.out_proj.state_dict())


def port_block(theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, ours: Block) -> None:
    port_attention(theirs.self_attn, ours.attention)
    assert ours.feed_forward is not None
    assert ours.feed_forward_norm is not None
    norms = [ours.attention_norm]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        assert ours.cross is not None
        assert ours.cross_norm is not None
        port_attention(theirs.multihead_attn, ours.cross)
        norms.append(ours.cross_norm)
    norms.append(ours.feed_forward_norm)
    for number, norm in enumerate(norms, start=1):
        norm.load_state_dict(getattr(theirs, f"norm{number}").state_dict())
    ours.feed_forward.expand.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.contract.load_state_dict(theirs.linear2.state_dict())


def port_stack(theirs: nn.TransformerEncoder | nn.TransformerDecoder, ours: Stack) -> None:
    for their_block, our_block in zip(theirs.layers, ours.blocks, strict=True):
        assert isinstance(our_block, Block)
        port_block(their_block, our_block)
    assert (theirs.norm is None) == (ours.norm is None)
    if ours.norm is not None and theirs.norm is not None:
        ours.norm.load_state_dict(theirs.norm.state_dict())


def randomize(module: nn.Module) -> None:
    """Random biases and norms too: as they are drawn, zeros and ones would hide that they are mixed up."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
