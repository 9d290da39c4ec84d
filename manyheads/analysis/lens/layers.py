"""States of all layers for one input, and the predictions that a lens reads from them.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.core.block import Stack
from manyheads.core.recording import record
from manyheads.core.runtime import eval_mode
from manyheads.errors import UserError

Translate = Callable[[int, Tensor], Tensor]


class LayerStates(NamedTuple):
    """Residual stream of one input, and the function that turns its states into logits.

    states  L tensors (1, T, D) before the final norm: the embeddings, then the output of each layer
    logits  function from states (1, T, D) to logits (1, T, V), with the final norm
    """

    states: list[Tensor]
    logits: Callable[[Tensor], Tensor]


class Predictions(NamedTuple):
    """Predictions of L layers at T positions. The answer at a position is the likeliest output of the last layer.

    ids            (L, T, top) indices of the likeliest outputs, in descending order of probability
    probabilities  (L, T, top) their probabilities
    answers        (T,) index of the answer
    ranks          (L, T) rank of the answer, from 1
    kl             (L, T) Kullback-Leibler divergence, in nats, of the layer's distribution from the last layer's
    """

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    answers: NDArray[np.int64]
    ranks: NDArray[np.int64]
    kl: NDArray[np.float32]


def layer_states(
    model: nn.Module, stack: str, project: Callable[[Tensor], Tensor], *inputs: Tensor | None
) -> LayerStates:
    """Run the model once, and return its states.

    stack    name of the stack of layers, such as the decoder
    project  the model's own function from normalized states (1, T, D) to logits
    inputs   arguments of the model's `forward`

    Raises UserError for a model without a stack of this name.
    """
    layers = getattr(model, stack, None)
    if not isinstance(layers, Stack):
        raise UserError(f"the logit lens needs a stack of layers: {type(model).__name__} has none")
    norm = nn.Identity() if layers.norm is None else layers.norm
    with eval_mode(model), torch.no_grad(), record(model, [stack, f"{stack}.blocks.*"], of="residual") as states:
        model(*inputs)
    return LayerStates([state for (state,) in states.values()], lambda state: project(norm(state)))


@torch.no_grad()
def predictions(
    layers: LayerStates, top: int, translate: Translate | None = None, *, first: bool = False
) -> Predictions:
    """Return the predictions of all layers.

    top        number of outputs for each layer and position
    translate  function of the index of a layer and its states, applied before the final norm. None: the logit lens
    first      True: at all positions, the answer and the last layer's distribution are those of the first position,
               such as a class token
    """
    last = layers.logits(layers.states[-1])[0].float().log_softmax(-1)  # (T, V)
    last = last[:1].expand_as(last) if first else last
    answers, rows = last.argmax(-1, keepdim=True), []
    for layer, state in enumerate(layers.states):
        log_p = layers.logits(state if translate is None else translate(layer, state))[0].float().log_softmax(-1)
        best = log_p.exp().topk(min(top, log_p.shape[-1]))
        rank = 1 + (log_p > log_p.gather(-1, answers)).sum(-1)
        rows.append((best.indices, best.values, rank, divergence(last, log_p)))
    ids, probabilities, ranks, kl = (torch.stack(each).cpu().numpy() for each in zip(*rows, strict=True))
    return Predictions(ids, probabilities, answers[:, 0].cpu().numpy(), ranks, kl)


def divergence(last: Tensor, layer: Tensor) -> Tensor:
    """Return KL(last || layer) in nats, (...), from log-probabilities (..., V)."""
    return F.kl_div(layer, last, reduction="none", log_target=True).sum(-1).clamp(min=0)
