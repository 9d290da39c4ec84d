"""Mixture of experts: a feed-forward layer of which each token uses a few parts (Shazeer 2017; Switch: Fedus 2021).

A router gives every token a probability for each expert. The token uses its `top_k` most probable experts, and their
outputs are added, each multiplied by its probability (Fedus 2021, equations 1 and 2). By default, the probabilities are
not normalized again over the chosen experts. Therefore the router also gets a gradient if tokens use only one expert.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from manyheads.core.config import Config, FieldError, Range, Size, values
from manyheads.core.dropout import dropout
from manyheads.core.layers import ACTIVATIONS
from manyheads.core.masks import padding
from manyheads.core.tap import Tap

# The number of rows in the matrix products of an expert is a multiple of this number. oneDNN compiles its products in
# bf16 for each shape, so a different number in each step takes more time than the products.
ROWS = 32


@dataclass(frozen=True, kw_only=True)
class ExpertConfig(Config):
    """Options of a model whose feed-forward networks may be experts. They need `feed_forward` "experts".

    experts      number of experts of each layer
    top_k        number of experts that each token uses
    expert_size  hidden units of each expert. With none, as many as in the dense feed-forward network
    capacity     maximum number of tokens of an expert in training, as a multiple of the mean number. With none, there
                 is no limit
    balance      weight of the load-balancing loss (alpha in Fedus 2021)
    """

    experts: Annotated[int, Range(1, 2**12)] = 8
    top_k: Annotated[int, Range(1, 2**12)] = 1
    expert_size: Size | None = None
    capacity: Annotated[float, Range(0, 2**12, above=True)] | None = None
    balance: Annotated[float, Range(0, 1000)] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k > self.experts:
            raise FieldError("top_k", f"is {self.top_k}: expected at most the number of experts, {self.experts}")
        given = values(self)
        for option in fields(ExpertConfig):
            value = given[option.name]
            if value != option.default and given.get("feed_forward") != "experts":
                raise FieldError(option.name, f"is {value}: it has an effect only with feed_forward=experts")


class Router(nn.Linear):
    """Linear layer whose softmax gives the probabilities of the experts: x (N, D) -> (N, E).

    It computes in float32, also under autocast (Fedus 2021, section 2.4).
    """

    def __init__(self, width: int, experts: int) -> None:
        super().__init__(width, experts, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
            return F.linear(x.to(dtype), self.weight.to(dtype)).softmax(-1)


class Experts(nn.Module):
    """Sparsely gated feed-forward layer: x (B, T, D) -> (B, T, D).

    experts, top_k  number of experts, and number of experts that each token uses
    capacity        In training, an expert processes at most ceil(capacity * tokens * top_k / experts) tokens of a batch
                    (Fedus 2021, equation 3). For a token above this limit, the expert adds nothing, so only the
                    residual connection passes the token on. The first choices of all tokens precede the second ones.
                    In eval mode there is no limit. So the output for a token does not depend on the other tokens.
    balance         weight of the load-balancing loss, which `balance_losses` collects
    normalized      if True, the probabilities of the chosen experts are divided by their sum (Shazeer 2017, equation 3)

    Padding uses no expert if the lengths of the texts are given. It then takes no capacity, and the loss ignores it.
    """

    def __init__(
        self, width: int, hidden: int, activation: str = "relu", dropout: float = 0.0, *, experts: int, top_k: int,
        capacity: float | None = None, balance: float = 0.01, normalized: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.router = Router(width, experts)
        self.expand = nn.ModuleList([nn.Linear(width, hidden) for _ in range(experts)])
        self.contract = nn.ModuleList([nn.Linear(hidden, width) for _ in range(experts)])
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout
        self.top_k = top_k
        self.capacity = capacity
        self.balance = balance
        self.normalized = normalized
        self.losses: list[Tensor] | None = None  # set by `balance_losses`
        self.tap = Tap("feed_forward")

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the output (B, T, D) for x (B, T, D).

        lengths  (B,) number of real tokens of each row. By default, all tokens are real
        """
        tokens = x.flatten(0, -2)  # (N, D)
        real = None if lengths is None else ~padding(lengths, x.shape[-2], x.device).flatten()
        probabilities = self.router(tokens)  # (N, E)
        gates, chosen = (best.T for best in probabilities.topk(self.top_k))  # (k, N)
        gates = gates / gates.sum(0) if self.normalized else gates
        if self.training:  # also without `balance_losses`, because gradient checkpointing repeats this computation
            loss = self.balance * balance_loss(probabilities, chosen, real)
            if self.losses is not None:
                self.losses.append(loss)
        order, sizes = self._assign(chosen, real)
        inputs = F.embedding(order % len(tokens), tokens)  # a gather whose gradient is deterministic and fast
        outputs = torch.cat([self._expert(e, part) for e, part in enumerate(inputs.split(sizes))])
        # row of each choice in `outputs`; choices that no expert processes get the last row, which is zero
        places = torch.arange(len(order), device=x.device)
        rows = chosen.new_full((chosen.numel() + 1,), len(order)).index_copy(0, order, places)[:-1]
        outputs = torch.cat([outputs, outputs.new_zeros(1, outputs.shape[-1])])
        mixed = (F.embedding(rows.view_as(chosen), outputs) * gates[..., None].to(outputs.dtype)).sum(0)  # (N, D)
        return self.tap.on("feed_forward", mixed.view_as(x))

    @property
    def idle_parameters(self) -> int:
        """Return the number of parameters of the experts that a token does not use."""
        experts = sum(parameter.numel() for part in (self.expand, self.contract) for parameter in part.parameters())
        return experts // len(self.expand) * (len(self.expand) - self.top_k)

    def _assign(self, chosen: Tensor, real: Tensor | None) -> tuple[Tensor, list[int]]:
        """Return the order in which experts process the choices of tokens, and the number of rows of each expert.

        The order contains indices into the k * N choices, sorted by expert. The number of rows of an expert is a
        multiple of `ROWS`; the additional rows have the index k * N.

        chosen  (k, N) experts of each token
        real    (N,) False at padding; None without padding
        """
        experts = chosen.flatten()
        count = len(self.expand)
        if experts.is_meta or isinstance(experts, FakeTensor):  # Costs hardly depend on the choices.
            return experts, [len(part) for part in experts.tensor_split(count)]
        if real is not None:
            experts = experts.where(real.repeat(len(chosen)), count)
        order = experts.argsort(stable=True)
        sizes = experts.bincount(minlength=count)[:count].tolist()
        limit = None
        if self.capacity is not None and self.training:
            limit = math.ceil(self.capacity * sum(sizes) / count)
        parts = [part[:limit] for part in order[: sum(sizes)].split(sizes)]
        parts = [F.pad(part, (0, -len(part) % ROWS), value=len(experts)) for part in parts]
        return torch.cat(parts), [len(part) for part in parts]

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        hidden = self.activation(self.expand[expert](x))
        return self.contract[expert](dropout(hidden, self.dropout, self.training))


def balance_loss(probabilities: Tensor, chosen: Tensor, real: Tensor | None = None) -> Tensor:
    """Return the load-balancing loss: experts * sum of fraction * mean probability (Fedus 2021, equations 4 to 6).

    It is 1 if all experts get the same number of tokens. Only the probabilities have a gradient.

    probabilities  (N, E) probability of each expert for each token
    chosen         (k, N) experts of each token
    real           (N,) False at padding; None without padding
    """
    weight = torch.ones_like(probabilities[:, 0]) if real is None else real.to(probabilities.dtype)
    weight = weight / weight.sum()
    counts = weight.new_zeros(probabilities.shape[1]).index_add(0, chosen.flatten(), weight.repeat(len(chosen)))
    return probabilities.shape[1] * (counts / len(chosen)) @ (weight @ probabilities)


def expert_layers(model: nn.Module) -> list[Experts]:
    """Return the layers of experts in a model."""
    return [module for module in model.modules() if isinstance(module, Experts)]


@contextmanager
def balance_losses(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the weighted load-balancing loss of each layer of experts that runs inside the `with` block.

    The layers must be in training mode. The fractions are those of one micro-batch on one process. The backward pass
    belongs outside of the block: gradient checkpointing would otherwise collect the losses again.
    """
    losses: list[Tensor] = []
    layers = expert_layers(model)
    for layer in layers:
        layer.losses = losses
    try:
        yield losses
    finally:
        for layer in layers:
            layer.losses = None


def make_experts(
    c: ExpertConfig, width: int, hidden: int, activation: str, dropout: float = 0.0, *, normalized: bool = False
) -> Experts:
    """Return a mixture of experts; each has `hidden` hidden units, unless the configuration states their number."""
    return Experts(
        width, c.expert_size or hidden, activation, dropout, experts=c.experts, top_k=c.top_k, capacity=c.capacity,
        balance=c.balance, normalized=normalized,
    )  # fmt: skip
