"""Taps: the places inside a model at which activations can be recorded (`record`) and edited (`edit`).

A tap belongs to one module. Its places have the names in use in the field:

    "queries", "keys", "values"  projected inputs of the attention, (B, H, T, Dh)
    "scores"            scaled scores with their bias, before the mask and the softmax, (B, H, Tq, Tk)
    "attention"         attention weights, before dropout, (B, H, Tq, Tk)
    "head_outputs"      weighted means of the values, before the output projection, (B, H, Tq, Dv)
    "attention_output"  output of the attention sublayer, after the output projection, (B, T, D)
    "feed_forward"      output of the feed-forward network, (B, T, D)
    "residual"          residual stream (B, T, D): the name of a stack is the input of its first block, the name of a
                        block is its output
    "logits"            output of the model's last layer: words (B, T, V), or labels (B, L)

Outputs of sublayers are those before the addition to the residual stream. The fused kernel still computes the output
of an attention whose weights are recorded, so recording does not change it; only the requested part is computed in
addition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from manyheads.errors import UserError

Place = Literal[
    "queries", "keys", "values", "scores", "attention", "head_outputs", "attention_output", "feed_forward", "residual",
    "logits",
]  # fmt: skip
ATTENTION: tuple[Place, ...] = ("queries", "keys", "values", "scores", "attention", "head_outputs")  # axis 1: heads
_WEIGHTS: tuple[Place, ...] = ("scores", "attention")  # the fused kernel does not compute them
Change = Callable[[Tensor], Tensor]
Part = Callable[[Sequence[int] | None, Sequence[int] | None], Tensor]
T = TypeVar("T")


class Grid(NamedTuple):
    """Image grid of the queries, or of the keys, of an attention map.

    An attention layer returns the grids of both by `grids(shape of its input)`; `ReadsImages.grids` has those of all
    layers of a model.

    rows, columns  size of the grid. Its cells are the last positions of the sequence, row by row; for a video clip,
                   frame after frame.
    tokens         names of the tokens before the cells
    cover          fractions of the image height and width that the cells cover
    """

    rows: int
    columns: int
    tokens: tuple[str, ...] = ()
    cover: tuple[float, float] = (1.0, 1.0)


class Calculation(NamedTuple):
    """Inputs of the attention of h heads, which computes softmax(scale * query @ key^T + added) @ value.

    query (B, h, ..., Tq, Dh), key (B, h, ..., Tk, Dh), value (B, h, ..., Tk, Dv)
    added  bias, with minus infinity at keys that a mask hides; broadcasts to (B, h, ..., Tq, Tk). None without bias and
           mask
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    added: Tensor | None


@dataclass(eq=False)
class Recording(Generic[T]):
    """Activations of one place to record, and those of the calls so far.

    heads, queries  indices to record; None for all
    gradients       True to record the tensors of the graph themselves, not copies
    """

    calls: list[T]
    place: Place
    heads: Sequence[int] | None = None
    queries: Sequence[int] | None = None
    gradients: bool = False


class Tap(nn.Module):
    """Hook inside a model that can record or edit activations of the given places.

    The hook has no effect unless a recording or an edit is active.
    """

    def __init__(self, *places: Place) -> None:
        super().__init__()
        self.places = places or ATTENTION
        self.recordings: list[Recording[Tensor]] = []
        self.calculations: list[Recording[Calculation]] = []
        self.edits: list[tuple[Place, Change]] = []

    @property
    def is_active(self) -> bool:
        """Return True if recordings or edits are active.

        Models then run PyTorch modules instead of the fused kernels.
        """
        return bool(self.recordings or self.calculations or self.edits)

    @property
    def needs_weights(self) -> bool:
        """Return True if the output must be computed from attention weights that are edited, or have gradients."""
        return any(self.changes(place) for place in _WEIGHTS)

    def changes(self, place: Place) -> bool:
        """Return True if `on` returns another tensor than it receives."""
        return self._records_gradients(place) or any(at == place for at, _ in self.edits)

    def on(self, place: Place, activations: Tensor) -> Tensor:
        """Apply the active edits of a place to its activations, record the result, and return it."""
        if not self.is_active:
            return activations
        for at, change in self.edits:
            activations = change(activations) if at == place else activations
        if self._records_gradients(place):
            activations = _with_gradient(activations)
        self.store(place, activations)
        return activations

    def store(self, place: Place, activations: Tensor) -> None:
        """Store the heads and positions of activations that recordings of the place have requested."""

        def part(heads: Sequence[int] | None, rows: Sequence[int] | None) -> Tensor:
            selected = activations if heads is None else activations[:, list(heads)]
            return selected if rows is None else selected[..., list(rows), :]

        # Logits of labels, (B, L), have no positions.
        self.record(place, part, activations.shape[-2] if activations.dim() > 2 else 0, activations)

    def record(self, place: Place, part: Part, positions: int, activations: Tensor | None = None) -> None:
        """Store what the active recordings of a place have requested.

        part         function that returns the given heads and positions. It is called only for what is requested
        positions    number of positions: tokens, or query rows of attention weights
        activations  the activations themselves, for recordings with gradients
        """
        for recording in self.recordings:
            if recording.place != place:
                continue
            check_range("query row" if place in _WEIGHTS else "position", recording.queries, positions)
            if recording.gradients:
                assert activations is not None
                recording.calls.append(activations)
            else:
                with torch.no_grad():
                    recording.calls.append(part(recording.heads, recording.queries).detach().clone())

    def _records_gradients(self, place: Place) -> bool:
        return any(recording.place == place and recording.gradients for recording in self.recordings)

    def record_calculation(self, part: Callable[[Sequence[int] | None], Calculation]) -> None:
        """Store the inputs of the attention that the active recordings have requested.

        `part(heads)` returns the inputs of the given heads.
        """
        for recording in self.calculations:
            with torch.no_grad():
                recording.calls.append(part(recording.heads))


def check_range(noun: str, indices: Sequence[int] | None, count: int) -> None:
    """Raise UserError for an index that does not exist among `count`. Negative indices count from the end."""
    for index in indices or ():
        if not -count <= index < count:
            expected = f"expected 0 to {count - 1}" if count else "there is none"
            raise UserError(f"{noun} {index} does not exist: {expected}")


def _with_gradient(activations: Tensor) -> Tensor:
    """Return activations that keep their gradient in `grad`, also in a model whose parameters are frozen."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        raise UserError(
            "gradients cannot be recorded here, because PyTorch computes none: call the model itself outside "
            "torch.no_grad(), not a method of a predictor, which runs the compiled model"
        )
    activations = activations if activations.requires_grad else activations.detach().requires_grad_()
    activations.retain_grad()
    return activations
