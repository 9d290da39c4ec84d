"""Direct logit attribution: the contribution of each part of a model to a logit (Elhage 2021, Wang 2022).

In a pre-norm model, the last state is a sum: embeddings, the output of each head, and the output of each feed-forward
network. The final norm with its scale held fixed and the output layer are linear, so a logit is the sum of one number
for each part, and of the biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from manyheads.analysis.contrast import FEED_FORWARD, HEADS, RESIDUAL, Activations, Difference, stack_of
from manyheads.analysis.heat_maps import HeatMaps, Panel
from manyheads.analysis.readout import Readout
from manyheads.core.block import Block, Stack
from manyheads.core.layers import RMSNorm
from manyheads.core.recording import record
from manyheads.core.runtime import eval_mode
from manyheads.errors import UserError
from manyheads.files import JsonObject


@dataclass(frozen=True, repr=False)
class LogitAttribution(HeatMaps):
    """Contributions to a logit, or to a difference of two logits.

    The heat maps are "layers" (attention and feed-forward network of each layer), "rest" (embeddings and biases),
    "heads" and "source tokens". The values of "layers" and "rest" add up to the logit. "heads" and "source tokens"
    divide the attention of each layer further, by head and by the token that the heads attend to.

    value  the logit, or the difference
    """

    heading: ClassVar = "Logit attribution"

    value: float

    def document(self) -> JsonObject:
        """Return all heat maps and the logit as JSON data."""
        return {**super().document(), "value": self.value}


@torch.no_grad()
def attribute_logits(
    readout: Readout, target: str | None = None, against: str | None = None, *, scale: bool = True
) -> LogitAttribution:
    """Return the contributions of all parts of a model to a logit.

    target   name of an output; by default, the most likely one
    against  name of a second output, whose logit is subtracted; by default, none is
    scale    True to divide by the scale of the final norm, so that the contributions add up to the logit; False to
             leave it out, so that contributions can be compared between inputs

    Raises UserError for a model with a norm after each sublayer, with another norm than a layer norm before the output,
    or whose output layers are not linear.
    """
    _, stack = stack_of(readout)
    blocks = [block for block in stack.blocks if isinstance(block, Block)]
    if not all(block.norm_first for block in blocks):
        raise UserError(
            f"{readout.source}: this model has a norm after each sublayer, so its logits are no sum over its layers"
        )
    if not (stack.norm is None or isinstance(stack.norm, nn.LayerNorm)):
        raise UserError(f"{readout.source}: expected a layer norm before the output, found another normalization")
    difference = Difference.of(readout, target, against)
    value, gradient, output_bias = _linear_output(readout, stack, difference)
    with record(readout.model, of="attention") as maps, record(readout.model, of="values") as values:
        parts = Activations.of(readout)
    states = [*parts[RESIDUAL].values()]
    direction, norm_bias = _before_norm(stack.norm, gradient, states[-1][0], scale=scale)
    heads, sources, layers = [], [], []
    for block, (layer, outputs) in zip(blocks, parts[HEADS].items(), strict=True):
        projection, factor = block.attention.output, block.attention_scale
        by_state = direction if factor is None else direction * factor  # (T, D)
        by_output = (by_state @ projection.weight).unflatten(-1, (block.attention.heads, -1)).transpose(0, 1)
        bias = by_state.new_zeros(()) if projection.bias is None else (by_state * projection.bias).sum()
        heads.append(torch.cat([(by_output * outputs[0]).sum((1, 2)), bias[None]]))  # (H + 1,)
        (map,), (value_of,) = maps[layer], values[layer]
        sources.append(torch.einsum("hqd,hqk,hkd->k", by_output, map[0], value_of[0]))
        layers.append(heads[-1].sum()[None])
    for index, (block, output) in enumerate(zip(blocks, parts.get(FEED_FORWARD, {}).values(), strict=False)):
        factor = block.feed_forward_scale
        added = output[0] if factor is None else output[0] * factor
        layers[index] = torch.cat([layers[index], (direction * added).sum()[None]])
    rest = torch.stack([(direction * states[0][0]).sum(), norm_bias, output_bias])
    tokens = readout.side.padded(len(direction)).tokens if readout.side is not None else ()
    names = [f"layer {index}" for index in range(len(blocks))]
    panels = (
        _panel("layers", names, ["attention", FEED_FORWARD][: len(layers[0])], layers),
        _panel("rest", [""], ["embeddings", "final norm bias", "output bias"], [rest]),
        _panel("heads", names, [*(f"head {head}" for head in range(len(heads[0]) - 1)), "bias"], heads),
        _panel("source tokens", names, [f"{at} {token}" for at, token in enumerate(tokens)], sources),
    )  # fmt: skip
    title = f"{difference.name(readout)}; {readout.title}"
    unit = "contribution to the logit" if scale else "contribution, without the scale of the final norm"
    return LogitAttribution(readout.source, title, unit, panels, float(value))


def _panel(title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Tensor]) -> Panel:
    return Panel(title, tuple(rows), tuple(columns), torch.stack([*values]).double().cpu().numpy())


def _linear_output(readout: Readout, stack: Stack, difference: Difference) -> tuple[Tensor, Tensor, Tensor]:
    """Return the difference of logits, its gradient (T, D) by the output of the stack, and its constant part.

    Raises UserError if the difference is no linear function of this output.
    """
    states: list[Tensor] = []

    def value(factor: float) -> Tensor:
        def replace(module: nn.Module, given: object, output: Tensor) -> Tensor:
            states.append((factor * output.detach()).requires_grad_())
            return states[-1]

        handle = stack.register_forward_hook(replace)
        try:
            with eval_mode(readout.model), torch.enable_grad():
                return difference(readout.logits())[0]
        finally:
            handle.remove()

    once, twice = value(1.0), value(2.0)
    (gradient,) = torch.autograd.grad(once, states[0])
    linear = (gradient * states[0]).sum().detach()
    bias = once.detach() - linear
    if not torch.allclose(twice.detach(), 2 * linear + bias, rtol=1e-3, atol=1e-3):
        raise UserError(
            f"{readout.source}: the output layers of {type(readout.model).__name__} are not linear, so its logits are "
            "no sum over its layers"
        )
    return once.detach(), gradient[0], bias


def _before_norm(norm: nn.LayerNorm | None, gradient: Tensor, state: Tensor, *, scale: bool) -> tuple[Tensor, Tensor]:
    """Return the gradient (T, D) by the input of the final norm with its scale held fixed, and the part of its bias.

    gradient  gradient by the output of the norm, (T, D)
    state     input of the norm, (T, D)
    """
    if norm is None:
        return gradient, gradient.new_zeros(())
    bias = gradient.new_zeros(()) if norm.bias is None else (gradient * norm.bias).sum()
    direction = gradient * norm.weight
    if not isinstance(norm, RMSNorm):
        direction, state = direction - direction.mean(-1, keepdim=True), state - state.mean(-1, keepdim=True)
    return direction / (state.square().mean(-1, keepdim=True) + norm.eps).sqrt() if scale else direction, bias
