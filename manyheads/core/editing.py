"""Editing of activations inside any model: ablation and activation patching.

    with edit(model) as change:
        change.zero("encoder.blocks.1.attention", heads=[2])
        model(...)                      # without that head

    with record(model, of="residual") as states:
        model(...)
    with edit(model) as change:         # activation patching: the state of position 3 from the other run
        change.residual("decoder.blocks.1", states["decoder.blocks.1"][0][:, [3]], positions=[3])
        model(...)

`manyheads.core.tap` lists the places that can be edited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from manyheads.calls import checked, checked_methods, shown
from manyheads.core.recording import Layers, select_taps
from manyheads.core.tap import ATTENTION, Change, Place, Tap, check_range
from manyheads.errors import UserError


@checked_methods
class Edit:
    """Edits of the activations of a model. They are undone when the `with` block of `edit` ends.

    `new` is a tensor that broadcasts to the replaced part, or a function that receives the replaced part and returns
    its replacement. Examples: `torch.zeros_like` for ablation, a mean over other runs for mean ablation, states that
    `record` stored in another run for activation patching.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._undo: list[tuple[Tap, tuple[Place, Change]]] = []

    def replace(
        self, of: Place, layers: Layers, new: Tensor | Change, *, heads: Sequence[int] | None = None,
        positions: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Replace activations of a place, such as "queries", in the selected layers, heads and positions.

        layers     as in `record`
        heads      indices of heads, at a place that has heads. By default, all
        positions  indices, negative from the end: query rows of attention weights. By default, all. With a key-value
                   cache, they count within each call

            >>> with manyheads.edit(gpt.model) as change:
            ...     change.replace("queries", [0], torch.zeros_like, heads=[1], positions=[-1])
            ...     text = gpt.generate("the cat", max_tokens=1)
        """

        def change(activations: Tensor) -> Tensor:
            selections = [(1, "head", heads)] * (of in ATTENTION) + [(-2, "position", positions)]
            chosen = [(axis, noun, indices) for axis, noun, indices in selections if indices is not None]
            return _replaced(activations, chosen, new)

        for tap in select_taps(self._model, of, layers, heads).values():
            tap.edits.append((of, change))
            self._undo.append((tap, (of, change)))

    def map(self, layers: Layers, heads: Sequence[int] | None, new: Tensor | Change) -> None:
        """Replace the attention maps (B, h, Tq, Tk) of these heads by a tensor, or by a function of the maps.

        >>> with manyheads.edit(gpt.model) as change:
        ...     change.map([0], None, lambda weights: weights.flip(1))  # swap the two heads' maps
        ...     text = gpt.generate("the cat", max_tokens=1)
        """
        self.replace("attention", layers, new, heads=heads)

    def output(self, layers: Layers, heads: Sequence[int] | None, new: Tensor | Change) -> None:
        """Replace the outputs (B, h, Tq, Dv) of these heads, before the output projection."""
        self.replace("head_outputs", layers, new, heads=heads)

    def zero(self, layers: Layers, heads: Sequence[int] | None = None) -> None:
        """Set the outputs of these heads to zero (ablation)."""
        self.output(layers, heads, torch.zeros_like)

    def feed_forward(self, layers: Layers, new: Tensor | Change, positions: Sequence[int] | None = None) -> None:
        """Replace the outputs (B, t, D) of feed-forward networks at these positions, before the residual addition."""
        self.replace("feed_forward", layers, new, positions=positions)

    def residual(self, layers: Layers, new: Tensor | Change, positions: Sequence[int] | None = None) -> None:
        """Replace the residual stream (B, t, D) at these positions.

        The name of a block stands for its output, the name of a stack for the input of its first block.
        """
        self.replace("residual", layers, new, positions=positions)

    def undo(self) -> None:
        for tap, added in self._undo:
            tap.edits.remove(added)
        self._undo.clear()


@checked
@contextmanager
def edit(model: nn.Module) -> Iterator[Edit]:
    """Edit activations of a model while the `with` block runs.

    All places that `manyheads.core.tap` lists can be edited.

        >>> before = gpt.generate("the cat", max_tokens=3, temperature=0)
        >>> with manyheads.edit(gpt.model) as change:
        ...     change.zero(layers=[0], heads=[1])
        ...     change.output([1], [0], lambda states: 2 * states)
        ...     change.feed_forward([0], lambda states: 0 * states)
        ...     change.residual([1], lambda states: states + 0.1)
        ...     without = gpt.generate("the cat", max_tokens=3, temperature=0)
        >>> gpt.generate("the cat", max_tokens=3, temperature=0) == before
        True
    """
    changes = Edit(model)
    try:
        yield changes
    finally:
        changes.undo()


def _replaced(
    activations: Tensor, selections: Sequence[tuple[int, str, Sequence[int]]], new: Tensor | Change
) -> Tensor:
    """Return activations in which the part at the selected indices is replaced.

    selections  axis, noun for error messages, and indices along this axis
    """
    if not selections:
        return _fitted(new, activations)
    (axis, noun, indices), *rest = selections
    count = activations.shape[axis]
    check_range(noun, indices, count)
    # Without a dtype, an empty list would become a float tensor.
    at = torch.tensor([index % count for index in indices], dtype=torch.long, device=activations.device)
    return activations.index_copy(axis, at, _replaced(activations.index_select(axis, at), rest, new))


def _fitted(new: Tensor | Change, part: Tensor) -> Tensor:
    """Return the replacement of a part, in the shape of the part."""
    replacement = new if isinstance(new, Tensor) else new(part)
    if not isinstance(replacement, Tensor):
        raise UserError(f"the replacement is {shown(replacement)}: expected a function that returns a tensor")
    try:
        return replacement.to(part).expand_as(part)
    except RuntimeError:
        shapes = f"{tuple(replacement.shape)}, expected a shape that broadcasts to {tuple(part.shape)}"
        raise UserError(f"the replacement has the wrong shape: found {shapes}") from None
