"""Recording and editing of activations inside any model.

    with record(model, layers=["decoder.*.cross"], heads=[0, 3]) as maps:
        model(...)
    maps["decoder.blocks.0.cross"]      # one (B, 2, Tq, Tk) tensor per call, before dropout

    with edit(model) as change:
        change.zero("encoder.blocks.1.attention", heads=[2])
        model(...)                      # without that head

    with record(model, of="residual") as states:
        model(...)
    with edit(model) as change:         # activation patching: the state of position 3 from the other run
        change.residual("decoder.blocks.1", states["decoder.blocks.1"][0][:, [3]], positions=[3])
        model(...)

The fused kernel still computes the output, so recording does not change it; only the requested part is computed
in addition. There are three places to record or edit. `tapped(model, place)` lists the layer names of each place, in
the order in which the layers were built:

    "attention"     the attention weights of each head, and the outputs of the heads before the output projection
    "feed_forward"  the output of a feed-forward network, (B, T, D), before it is added to the residual stream
    "residual"      the residual stream (B, T, D): the name of a stack is the input of its first block, the name of a
                    block is its output
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor, nn

from manyheads.errors import UserError

Weights = Callable[[Sequence[int] | None, Sequence[int] | None], Tensor]
T = TypeVar("T")
Change = Callable[[Tensor], Tensor]
Place = Literal["attention", "feed_forward", "residual"]
Layers = Sequence[str | int] | str | int | None


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
    calls: list[T]
    heads: Sequence[int] | None
    queries: Sequence[int] | None


class Tap(nn.Module):
    """Hook inside a model that can record or edit activations.

    The hook has no effect unless a recording or an edit is active.
    """

    def __init__(self, place: Place = "attention") -> None:
        super().__init__()
        self.place = place
        self.recordings: list[Recording[Tensor]] = []
        self.calculations: list[Recording[Calculation]] = []
        self.map_edits: list[Change] = []
        self.output_edits: list[Change] = []

    @property
    def edits_maps(self) -> bool:
        return bool(self.map_edits)

    @property
    def is_active(self) -> bool:
        """Return True if recordings or edits are active.

        Models then run PyTorch modules instead of the fused kernels.
        """
        return bool(self.recordings or self.calculations or self.map_edits or self.output_edits)

    def record(self, weights: Weights, queries: int) -> None:
        """Store the attention weights that the active recordings have requested.

        `weights(heads, rows)` computes only the given heads and query rows.
        """
        for recording in self.recordings:
            _check_range("query row", recording.queries, queries)
            with torch.no_grad():
                recording.calls.append(weights(recording.heads, recording.queries))

    def record_calculation(self, part: Callable[[Sequence[int] | None], Calculation]) -> None:
        """Store the inputs of the attention that the active recordings have requested.

        `part(heads)` returns the inputs of the given heads.
        """
        for recording in self.calculations:
            with torch.no_grad():
                recording.calls.append(part(recording.heads))

    def on_pattern(self, pattern: Tensor) -> Tensor:
        """Apply the active edits to the attention weights (B, H, ..., Tq, Tk), record and return the edited weights."""
        for change in self.map_edits:
            pattern = change(pattern)
        self.record_map(pattern)
        return pattern

    def record_map(self, pattern: Tensor) -> None:
        """Store the heads and rows of attention weights (B, H, ..., Tq, Tk) that recordings have requested."""

        def part(heads: Sequence[int] | None, rows: Sequence[int] | None) -> Tensor:
            selected = pattern if heads is None else pattern[:, list(heads)]
            return (selected if rows is None else selected[..., list(rows), :]).detach().clone()

        self.record(part, pattern.shape[-2])

    def on_output(self, output: Tensor) -> Tensor:
        """Apply the active edits to the outputs of the heads (B, H, ..., Tq, Dv), or to states, and return the edited
        tensor.
        """
        for change in self.output_edits:
            output = change(output)
        return output

    def on_residual(self, states: Tensor) -> Tensor:
        """Apply the active edits to the states (B, ..., T, D), store the requested positions, and return the states."""
        states = self.on_output(states)
        for recording in self.recordings:
            _check_range("position", recording.queries, states.shape[-2])
            selected = states if recording.queries is None else states[..., list(recording.queries), :]
            recording.calls.append(selected.detach().clone())
        return states


class Maps(dict[str, list[Tensor]]):
    """Dictionary of recorded tensors. For each layer name, it contains a list with one tensor per call of the layer.

    Attention maps are (B, heads, Tq, Tk), states are (B, T, D).
    """

    def __repr__(self) -> str:
        lines = [f"  {name}: {len(calls)} x {tuple(calls[0].shape)}" for name, calls in self.items() if calls]
        first = next((calls[0] for calls in self.values() if calls), None)
        shape = "batch, positions, width" if first is not None and first.dim() == 3 else "batch, heads, queries, keys"
        return "\n".join([f"Maps of {len(lines)} layers (calls x ({shape}))", *lines])


@contextmanager
def record(
    model: nn.Module,
    layers: Layers = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
    *,
    of: Place = "attention",
) -> Iterator[Maps]:
    """Record attention maps (per call and head, before dropout) or states of a model while the `with` block runs.

    layers   layer names as `tapped(model, of)` lists them, shell patterns of names, or indices into that list. By
             default, all layers
    heads    indices of heads, in the order of the result. By default, all heads
    queries  indices of query rows (positions for states), negative from the end. By default, all rows. With a key-value
             cache, they count within each call
    of       "attention" for maps, "feed_forward" or "residual" for states (B, T, D). Active edits apply first.

    Raises UserError for a layer, head or row that does not exist, and RuntimeError if no selected layer ran.

        >>> with manyheads.record(translator.model, layers=[0], heads=[1]) as maps:
        ...     translation = translator.translate("the cat", beam=1)
        >>> name, calls = next(iter(maps.items()))
        >>> calls[0].shape[1]  # one head of the first layer
        1
    """
    modules = _select_modules(model, of, layers, heads)
    maps = Maps({name: [] for name, _ in modules})
    with _recording_calls(lambda tap: tap.recordings, modules, maps, heads, queries):
        yield maps


@contextmanager
def record_calculations(
    model: nn.Module, layers: Layers = None, heads: Sequence[int] | None = None
) -> Iterator[dict[str, list[Calculation]]]:
    """Record the queries, keys, values, scale and bias of each attention while the `with` block runs.

    The arguments are those of `record`. Raises UserError for an attention whose weights are not a softmax over products
    of queries and keys.
    """
    modules = _select_modules(model, "attention", layers, heads)
    calculations: dict[str, list[Calculation]] = {name: [] for name, _ in modules}
    with _recording_calls(lambda tap: tap.calculations, modules, calculations, heads, None):
        yield calculations


@contextmanager
def _recording_calls(
    recordings_of: Callable[[Tap], list[Recording[T]]], modules: list[tuple[str, nn.Module]],
    calls: Mapping[str, list[T]], heads: Sequence[int] | None, queries: Sequence[int] | None,
) -> Iterator[None]:  # fmt: skip
    """Record the selected modules while the `with` block runs: append their activations to `calls`, by layer name."""
    targets = [(recordings_of(_tap(module)), Recording(calls[name], heads, queries)) for name, module in modules]
    for recordings, recording in targets:
        recordings.append(recording)
    try:
        yield
    finally:
        for recordings, recording in targets:
            recordings.remove(recording)
    if not any(calls.values()):
        raise RuntimeError(f"recorded nothing: none of {', '.join(calls)} ran inside the block")


class Edit:
    """Edits of the activations of a model. They are undone when the `with` block of `edit` ends.

    `new` is a tensor that broadcasts to the replaced part, or a function that receives the replaced part and returns
    its replacement. Examples: `torch.zeros_like` for ablation, a mean over other runs for mean ablation, states that
    `record` stored in another run for activation patching.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._undo: list[tuple[list[Change], Change]] = []

    def map(self, layers: Layers, heads: Sequence[int] | None, new: Tensor | Change) -> None:
        """Replace the attention maps (B, h, Tq, Tk) of these heads by a tensor, or by a function of the maps.

        >>> with manyheads.edit(gpt.model) as change:
        ...     change.map([0], None, lambda weights: weights.flip(1))  # swap the two heads' maps
        ...     text = gpt.generate("the cat", max_tokens=1)
        """
        self._add("maps", _select_modules(self._model, "attention", layers, heads), 1, "head", heads, new)

    def output(self, layers: Layers, heads: Sequence[int] | None, new: Tensor | Change) -> None:
        """Replace the outputs (B, h, Tq, Dv) of these heads, before the output projection."""
        self._add("outputs", _select_modules(self._model, "attention", layers, heads), 1, "head", heads, new)

    def zero(self, layers: Layers, heads: Sequence[int] | None = None) -> None:
        """Set the outputs of these heads to zero (ablation)."""
        self.output(layers, heads, torch.zeros_like)

    def feed_forward(self, layers: Layers, new: Tensor | Change, positions: Sequence[int] | None = None) -> None:
        """Replace the outputs (B, t, D) of feed-forward networks at these positions, before the residual addition.

        positions  indices, negative from the end. By default, all. With a key-value cache, they count within each call.
        """
        modules = _select_modules(self._model, "feed_forward", layers, None)
        self._add("outputs", modules, -2, "position", positions, new)

    def residual(self, layers: Layers, new: Tensor | Change, positions: Sequence[int] | None = None) -> None:
        """Replace the residual stream (B, t, D) at these positions.

        The name of a block stands for its output, the name of a stack for the input of its first block.
        """
        self._add("outputs", _select_modules(self._model, "residual", layers, None), -2, "position", positions, new)

    def _add(
        self, kind: Literal["maps", "outputs"], modules: list[tuple[str, nn.Module]], axis: int, noun: str,
        indices: Sequence[int] | None, new: Tensor | Change,
    ) -> None:  # fmt: skip
        """Register an edit that replaces the activations at the selected indices along the axis."""

        def change(tensor: Tensor) -> Tensor:
            count = tensor.shape[axis]
            _check_range(noun, indices, count)
            positive = range(count) if indices is None else [index % count for index in indices]
            # Without a dtype, an empty list would become a float tensor.
            selected = torch.tensor(positive, dtype=torch.long, device=tensor.device)
            part = tensor.index_select(axis, selected)
            replacement = new.to(tensor) if isinstance(new, Tensor) else new(part)
            if replacement.shape != part.shape:
                try:
                    replacement = replacement.expand_as(part)
                except RuntimeError:
                    shapes = f"{tuple(replacement.shape)}, expected a shape that broadcasts to {tuple(part.shape)}"
                    raise UserError(f"the replacement has the wrong shape: found {shapes}") from None
            return tensor.index_copy(axis, selected, replacement)

        for _, module in modules:
            edits = _tap(module).map_edits if kind == "maps" else _tap(module).output_edits
            edits.append(change)
            self._undo.append((edits, change))

    def undo(self) -> None:
        for edits, change in self._undo:
            edits.remove(change)
        self._undo.clear()


@contextmanager
def edit(model: nn.Module) -> Iterator[Edit]:
    """Edit activations of a model while the `with` block runs.

    Attention maps, outputs of heads, outputs of feed-forward networks and the residual stream can be edited.

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


def tapped(model: nn.Module, place: Place = "attention") -> dict[str, nn.Module]:
    """Return every module of the model that records this type of activation, by name, in the order of construction.

    >>> len(tapped(gpt.model)), len(tapped(gpt.model, "feed_forward"))
    (2, 2)
    """
    by_tap: dict[Tap, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules():
        tap = getattr(module, "tap", None)
        if isinstance(tap, Tap) and tap.place == place:
            # A model with fused inference kernels contains some modules twice, under two names.
            by_tap.setdefault(tap, (name, module))
    return dict(by_tap.values())


def _tap(module: nn.Module) -> Tap:
    assert isinstance(module.tap, Tap)
    return module.tap


def _select_modules(
    model: nn.Module, place: Place, layers: Layers, heads: Sequence[int] | None
) -> list[tuple[str, nn.Module]]:
    if place not in get_args(Place):
        raise UserError(f"of is {place!r}: expected one of {', '.join(get_args(Place))}")
    modules, noun = tapped(model, place), place.replace("_", "-")
    if not modules:
        raise UserError(f"{type(model).__name__} has no {noun} layer to record or edit")
    if heads is not None and place != "attention":
        raise UserError(f"found heads {list(heads)} for {noun} layers, but only attention layers have heads")
    names = list(modules)
    if layers is None:
        selected = names
    else:
        selected = []
        for layer in [layers] if isinstance(layers, str | int) else layers:
            if isinstance(layer, int):
                _check_range("layer", [layer], len(names))
                matching = [names[layer]]
            else:
                matching = fnmatch.filter(names, layer)
            if not matching:
                raise UserError(f"no {noun} layer matches {layer!r}: expected one of {', '.join(names)}")
            selected += [name for name in matching if name not in selected]
    for name in selected:
        for head in heads or ():
            count: int = modules[name].heads  # type: ignore[assignment]
            if not -count <= head < count:
                raise UserError(f"{name} has no head {head}: expected 0 to {count - 1}")
    return [(name, modules[name]) for name in selected]


def _check_range(noun: str, indices: Sequence[int] | None, count: int) -> None:
    for index in indices or ():
        if not -count <= index < count:
            raise UserError(f"{noun} {index} does not exist: expected 0 to {count - 1}")
