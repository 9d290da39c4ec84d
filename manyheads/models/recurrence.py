"""Repeated application of one Transformer block with halting, as in the Universal Transformer.

One block is applied repeatedly (Dehghani 2018), with the same weights at every step:

    repeat:  state = block(state + coordinates(position, step))

With halting (adaptive computation time, Graves 2016), each position decides when to stop. At every step, a position
adds its halting probability sigmoid(w . state + b), and it halts at the step N where the sum exceeds 1 - epsilon. The
weight p of this last step is the remainder R, so that the weights of all steps sum to one. The output y of a position
is, for each type of halting:

    "basic"        y = p * state + (1 - p) * y at each step, as in the published code. The factors compound: weights
                   .3 .3 .3 .1 mix the states by .132 .189 .27 .1, which do not sum to one.
    "accumulated"  y = y + p * state: the weighted mean that Graves describes (section 2.2).

After halting, a position's output is frozen. Its state is still updated, so that other positions can attend to it. The
ponder cost, which is added to the loss, is the mean of N + R over the positions; only R has a gradient. In the
published code, a position that has not halted at the last step gets no remainder. Here, as in Graves, the last step
adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.attention import Attention
from manyheads.core.block import Block
from manyheads.core.cache import KVCache
from manyheads.core.config import Config, Epsilon, Heads, Layers, Length, Range, Rate, Size
from manyheads.core.dropout import dropout
from manyheads.core.interface import Generates, Model
from manyheads.core.layers import FeedForward
from manyheads.core.masks import Mask
from manyheads.core.positions import Layout, PositionTable, sinusoidal
from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError
from manyheads.files import JsonObject

# Kernel sizes of the two depthwise convolutions that replace the feed-forward network with the setting `transition`
# "separable", as in the published code.
KERNELS = (3, 5)


@dataclass(frozen=True, kw_only=True)
class RecurrenceConfig(Config):
    """Sizes and options of a block that is applied repeatedly.

    steps         number of applications of the block; with halting, their maximum number
    transition    last sublayer of the block: "feed_forward", or "separable": two depthwise separable convolutions with
                  a ReLU between them
    timing        step embeddings: "sinusoidal" as for positions (the paper), or "learned" (default of the published
                  code)
    halting       "fixed": all positions take all steps; "basic" and "accumulated": see the docstring of this module
    halting_bias  initial value of the bias b: at 1, positions initially halt after two steps; lower values halt later
    epsilon       a position halts when its remaining probability is below this value
    ponder        weight of the ponder cost in the loss
    norm          "post": after each residual sum, as published; "pre": before each sublayer, and once at the end
    """

    width: Size = 1024
    steps: Layers = 6
    heads: Heads = 16
    feed_forward: Size = 4096
    transition: Literal["feed_forward", "separable"] = "feed_forward"
    activation: str = "relu"
    norm: Literal["post", "pre"] = "post"
    norm_eps: Epsilon = 1e-5
    positions: Layout = "concatenated"
    timing: Literal["sinusoidal", "learned"] = "sinusoidal"
    halting: Literal["fixed", "basic", "accumulated"] = "fixed"
    halting_bias: Annotated[float, Range(-1000, 1000)] = 1.0
    epsilon: Annotated[float, Range(0, 1, above=True, below=True)] = 0.01
    ponder: Annotated[float, Range(0, 1000)] = 0.01
    max_positions: Length = 512
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    activation_dropout: Rate = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transition == "separable" and self.activation != "relu":
            raise UserError(f"activation is {self.activation!r}: expected 'relu', which the separable transition uses")


class PonderState(NamedTuple):
    """Number of steps that every position took before it halted, and the weights of the steps in the output.

    steps      number of steps N up to and including the last one, (B, T)
    remainder  weight R of the last step, (B, T)
    weights    weight p of each computed step, (B, T, steps); they sum to one at positions that are not padding
    real       False at padding, (B, T); None without padding
    """

    steps: Tensor
    remainder: Tensor
    weights: Tensor
    real: Tensor | None

    @property
    def cost(self) -> Tensor:
        """Return the mean of N + R (steps and remainder) over the positions that are not padding."""
        return self._mean(self.steps + self.remainder)

    @property
    def mean_steps(self) -> Tensor:
        return self._mean(self.steps)

    def _mean(self, values: Tensor) -> Tensor:
        return values.mean() if self.real is None else (values * self.real).sum() / self.real.sum()


# Ponder states, which hold the steps of each position, by stack ("encoder", "decoder"). Empty if the number of steps is
# fixed.
HaltingStatistics = dict[str, PonderState]


@runtime_checkable
class Halting(Protocol):
    """Interface of a model that applies one block repeatedly until each position halts.

    forward_with_halting  method that returns the last hidden states, as `hidden` does, and the steps of each position
    """

    forward_with_halting: Callable[..., tuple[Tensor, HaltingStatistics]]


def states_and_halting(
    model: Halting | Generates[Config, Any], compute: ComputeConfig | None = None
) -> Callable[..., tuple[Tensor, HaltingStatistics]]:
    """Return a function of the model's inputs that returns its last hidden states and its ponder states by stack.

    For a model without halting, the ponder states are empty.

    compute  configuration with which the function is compiled, if it says so
    """
    if isinstance(model, Halting):
        return model.forward_with_halting if compute is None else compute.compile(model.forward_with_halting)
    hidden = model.hidden if compute is None else compute.compile(model.hidden)
    return lambda *inputs, **options: (hidden(*inputs, **options), {})


class SeparableConvolution(FeedForward):
    """Convolutional sublayer of a Transformer block.

    It applies a depthwise convolution over 3 positions, a linear layer to more channels, ReLU, a depthwise convolution
    over 5 positions, and a linear layer back.

    Source: Dehghani 2018, section 2.1.

    causal  if True, the convolutions use only the current and earlier positions. If False, they use positions on both
            sides. Positions outside of the text are zeros
    """

    def __init__(self, width: int, hidden: int, dropout: float = 0.0, *, causal: bool) -> None:
        super().__init__(width, hidden, "relu", dropout)
        first, second = KERNELS
        self.before = nn.Conv1d(width, width, first, groups=width, bias=False)
        self.between = nn.Conv1d(hidden, hidden, second, groups=hidden, bias=False)
        self.causal = causal

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Apply the convolutions to x (B, T, D) and return (B, T, D).

        real  mask (B, T), False at padding. If None, there is no padding
        """
        hidden = self.activation(self.expand(self._convolve(self.before, x, real)))
        hidden = dropout(hidden, self.dropout, self.training)
        return self.tap.on("feed_forward", self.contract(self._convolve(self.between, hidden, real)))

    def _convolve(self, convolution: nn.Conv1d, x: Tensor, real: Tensor | None) -> Tensor:
        x = x if real is None else x.masked_fill(~real[..., None], 0.0)
        context = convolution.kernel_size[0] - 1
        left = context if self.causal else context // 2
        return convolution(F.pad(x.transpose(1, 2), (left, context - left))).transpose(1, 2)


class SeparableBlock(Block):
    """Transformer block whose last sublayer mixes neighboring positions by convolutions."""

    def _transition(self, x: Tensor, mask: Mask | None, cache: KVCache | None, layer: int) -> Tensor:
        transition, norm = self.feed_forward, self.feed_forward_norm
        assert transition is not None
        assert norm is not None

        def convolve(x: Tensor) -> Tensor:
            if cache is not None:
                assert isinstance(cache, StepCache)
                return transition(*cache.inputs_with(layer, x))[:, -x.shape[1] :]
            lengths = None if mask is None else mask.key_lengths
            real = None if lengths is None else _real_mask(lengths, x.shape[1])
            return transition(x, real)

        return self._residual(x, convolve, norm)


class StepCache(KVCache):
    """Key-value cache that stores the keys and values of every step of the repeated block, like those of layers.

    If the block contains convolutions, the cache also stores their inputs.
    """

    def __init__(self, c: RecurrenceConfig, batch: int, capacity: int, like: Tensor) -> None:
        kind: JsonObject = {"dtype": like.dtype, "device": like.device}
        super().__init__(c.steps, batch, c.heads, capacity, c.width // c.heads, **kind)
        width = c.width if c.transition == "separable" else 0
        self._inputs = torch.zeros(c.steps, batch, capacity, width, **kind)

    def inputs_with(self, step: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Store new inputs x (B, T, D) of a step, and return the inputs that the convolutions need.

        These are the previous inputs within reach of the kernels, followed by the new ones, (B, t, D). Also returns a
        mask (B, t), which is False before the beginning of a text.
        """
        rows, new = torch.arange(self.batch, device=x.device)[:, None], x.shape[1]
        at = self.lengths[:, None] + torch.arange(-sum(KERNELS) + len(KERNELS), new, device=x.device)  # (B, t)
        self._inputs[step, rows, at[:, -new:]] = x.to(self._inputs.dtype)
        return self._inputs[step, rows, at.clamp(min=0)], at >= 0

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self._inputs = self._inputs[:, rows]

    def replace(self, rows: Tensor, other: KVCache) -> None:
        assert isinstance(other, StepCache)
        super().replace(rows, other)
        # Positions beyond the smaller capacity cannot be in use, so they are not copied.
        capacity = min(self.capacity, other.capacity)
        self._inputs[:, rows, :capacity] = other._inputs[:, : len(rows), :capacity]


class Recurrence(nn.Module):
    """Block that is applied repeatedly to all positions.

    Each step first adds embeddings of the position and of the step.
    """

    timing: Tensor

    def __init__(self, c: RecurrenceConfig, *, causal: bool, cross: bool) -> None:
        super().__init__()
        self.config = c
        self.block = _block(c, causal=causal, cross=cross)
        self.positions = PositionTable(c.max_positions, c.width, c.positions)
        if c.timing == "learned":
            self.timing = nn.Parameter(torch.empty(c.steps, c.width).normal_(std=0.02))
        else:  # Leave out row 0 of the table, because the paper counts steps from 1.
            table = sinusoidal(c.steps + 1, c.width, c.positions)[1:].float()
            self.register_buffer("timing", table, persistent=False)
        self.halt = nn.Linear(c.width, 1) if c.halting != "fixed" else None
        self.norm = nn.LayerNorm(c.width, eps=c.norm_eps) if c.norm == "pre" else None

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: StepCache | None = None,
        offset: int | Tensor | None = None,
    ) -> tuple[Tensor, PonderState | None]:
        """Return the output (B, T, D) for x (B, T, D), and the ponder state, which contains the steps of each position.

        Row b of the batch starts at position offset[b].
        With a key-value cache, all steps are computed, because later positions may take more steps and attend to the
        states of all steps.
        """
        c, real = self.config, None if mask.key_lengths is None else _real_mask(mask.key_lengths, x.shape[1])
        state, y = x, torch.zeros_like(x)
        running = x.new_ones(x.shape[:2], dtype=torch.bool)  # (B, T)
        total = x.new_zeros(x.shape[:2])  # accumulated halting probability of each position
        steps, remainder = total, total
        weights: list[Tensor] = []
        for step in range(c.steps):
            state = self.positions(state, offset) + self.timing[step].to(x.dtype)  # (B, T, D)
            if self.halt is not None:
                p = torch.sigmoid(self.halt(state)).squeeze(-1)  # halting probabilities, (B, T)
                halts = running if step == c.steps - 1 else running & (total + p > 1 - c.epsilon)
                remainder = torch.where(halts, 1 - total, remainder)
                weight = torch.where(halts, 1 - total, p) * running
                steps, total, running = steps + running, total + weight, running & ~halts
                weights.append(weight)
            state = self.block(state, mask=mask, memory=memory, memory_mask=memory_mask, cache=cache, layer=step)
            if self.halt is None:
                y = state
                continue
            factor = weight[..., None]
            y = y + factor * state if c.halting == "accumulated" else factor * state + (1 - factor) * y
            active = running if real is None else running & real
            # Stop when all positions have halted. On the meta device, which is only used to count FLOPs, run all steps.
            if cache is None and not x.is_meta and not active.any():
                break
        y = y if self.norm is None else self.norm(y)
        return y, PonderState(steps, remainder, torch.stack(weights, -1), real) if weights else None


@contextmanager
def record_halting(model: nn.Module) -> Iterator[HaltingStatistics]:
    """Record the number of steps of every position while the `with` block runs.

    The result is a dictionary with one ponder state for each repeated block of the model, by name. If the model is
    called several times, the last call counts. The result is empty for a model without halting.
    """
    halting: HaltingStatistics = {}
    with ExitStack() as undo:
        for name, module in model.named_modules():
            if isinstance(module, Recurrence):

                def record(_: nn.Module, __: Any, output: tuple[Tensor, PonderState | None], name: str = name) -> None:
                    if output[1] is not None:
                        halting[name] = output[1]

                undo.callback(module.register_forward_hook(record).remove)
        yield halting


def ponder_cost(model: Model[Config], halting: HaltingStatistics) -> Tensor | float:
    """Return the ponder cost per token, which is added to the loss. It is 0 if the model has no halting."""
    if not halting:
        return 0.0
    assert isinstance(model.config, RecurrenceConfig)
    return model.config.ponder * sum(ponder.cost for ponder in halting.values())


def _block(c: RecurrenceConfig, *, causal: bool, cross: bool) -> Block:
    def attention() -> Attention:
        return Attention(c.width, c.heads, dropout=c.attention_dropout)

    if c.transition == "separable":
        kind: type[Block] = SeparableBlock
        transition: FeedForward = SeparableConvolution(c.width, c.feed_forward, c.activation_dropout, causal=causal)
    else:
        kind, transition = Block, FeedForward(c.width, c.feed_forward, c.activation, c.activation_dropout)
    return kind(
        attention(), transition, attention() if cross else None, norm=c.norm, dropout=c.dropout, norm_eps=c.norm_eps
    )


def _real_mask(lengths: Tensor, width: int) -> Tensor:
    """Return a mask (B, T), True at positions that are not padding."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]
