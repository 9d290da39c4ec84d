"""Looking at attention maps and changing them, in any model, in any mode.

    with record(model, layers=["decoder.*.cross"], heads=[0, 3]) as maps:
        model(...)
    maps["decoder.blocks.0.cross"]      # one (B, 2, Tq, Tk) tensor per call, before dropout

    with edit(model) as change:
        change.zero("encoder.blocks.1.attention", heads=[2])
        model(...)                      # without that head

Only what was asked for is computed beside the fused kernel, and the output does not change by recording.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

Weights = Callable[[Sequence[int] | None, Sequence[int] | None], Tensor]
Change = Callable[[Tensor], Tensor]


class Grid(NamedTuple):
    """What the queries, or the keys, of a map over an image are.

    A layer tells those of both by `grids(shape of its input)`, or the model those of all its layers by `grids()`.

    rows, columns  of the cells of the image, which come last, row by row; a clip's frames one below the other
    tokens         names of those before them
    cover          share of the image, down and across, that the cells cover
    """

    rows: int
    columns: int
    tokens: tuple[str, ...] = ()
    cover: tuple[float, float] = (1.0, 1.0)


@dataclass(eq=False)
class _Recording:
    calls: list[Tensor]
    heads: Sequence[int] | None
    queries: Sequence[int] | None


class Tap(nn.Module):
    """A place on an attention's way where its map and its output can be seen. Without visitors it does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.recordings: list[_Recording] = []
        self.map_edits: list[Change] = []
        self.output_edits: list[Change] = []

    @property
    def edits_maps(self) -> bool:
        return bool(self.map_edits)

    def record(self, weights: Weights, heads: int, queries: int) -> None:
        """Store what was asked for; `weights(heads, rows)` computes just that part of the map."""
        for wanted in self.recordings:
            _check_range("query row", wanted.queries, queries)
            with torch.no_grad():
                wanted.calls.append(weights(wanted.heads, wanted.queries))

    def saw_map(self, full: Tensor) -> Tensor:
        """An explicit map (B, H, ..., Tq, Tk) passes: edit it, then store what was asked for."""
        for change in self.map_edits:
            full = change(full)

        def part(heads: Sequence[int] | None, rows: Sequence[int] | None) -> Tensor:
            kept = full if heads is None else full[:, list(heads)]
            return (kept if rows is None else kept[..., list(rows), :]).detach().clone()

        self.record(part, full.shape[1], full.shape[-2])
        return full

    def saw_output(self, mixed: Tensor) -> Tensor:
        """The heads' outputs (B, H, ..., Tq, Dv) pass."""
        for change in self.output_edits:
            mixed = change(mixed)
        return mixed


class Maps(dict[str, list[Tensor]]):
    """Attention maps by layer name: one tensor (B, heads, Tq, Tk) for every call of that layer."""

    def __repr__(self) -> str:
        lines = [f"  {name}: {len(calls)} x {tuple(calls[0].shape)}" for name, calls in self.items() if calls]
        return "\n".join([f"Maps of {len(lines)} layers (calls x (batch, heads, queries, keys))", *lines])


@contextmanager
def record(
    model: nn.Module,
    layers: Sequence[str | int] | str | int | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
) -> Iterator[Maps]:
    """Record attention maps while the block runs: per call, per head, before dropout.

    layers   names as `tapped(model)` lists them, shell patterns of names, or numbers in that order; None for all.
    heads    which heads (in this order), None for all.
    queries  which query rows (negative from the end), None for all; with a cache, rows of each call.

    Raises ValueError for a layer, head or row that does not exist and RuntimeError if nothing was seen.
    """
    maps = Maps()
    visited: list[tuple[Tap, _Recording]] = []
    for name, module in _choose(model, layers, heads):
        maps[name] = []
        visited.append((_tap(module), _Recording(maps[name], heads, queries)))
    for tap, recording in visited:
        tap.recordings.append(recording)
    try:
        yield maps
    finally:
        for tap, recording in visited:
            tap.recordings.remove(recording)
    if not any(maps.values()):
        raise RuntimeError(f"recorded nothing: none of {', '.join(maps)} ran inside the block")


class Edit:
    """Changes to a model's attention, undone when the `edit` block ends."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._undo: list[tuple[list[Change], Change]] = []

    def map(
        self, layers: Sequence[str | int] | str | int | None, heads: Sequence[int] | None, new: Tensor | Change
    ) -> None:
        """Replace the maps (B, h, Tq, Tk) of these heads by a tensor, or by a function of them."""
        self._add("map_edits", layers, heads, new)

    def output(
        self, layers: Sequence[str | int] | str | int | None, heads: Sequence[int] | None, new: Tensor | Change
    ) -> None:
        """Replace the outputs (B, h, Tq, Dv) of these heads, before the output projection."""
        self._add("output_edits", layers, heads, new)

    def zero(self, layers: Sequence[str | int] | str | int | None, heads: Sequence[int] | None = None) -> None:
        """Silence these heads (ablation)."""
        self.output(layers, heads, torch.zeros_like)

    def _add(
        self,
        kind: str,
        layers: Sequence[str | int] | str | int | None,
        heads: Sequence[int] | None,
        new: Tensor | Change,
    ) -> None:
        def change(tensor: Tensor) -> Tensor:
            count = tensor.shape[1]
            chosen = list(range(count)) if heads is None else [head % count for head in heads]
            part = tensor[:, chosen]
            replacement = new.to(tensor) if isinstance(new, Tensor) else new(part)
            if replacement.shape != part.shape:
                replacement = replacement.expand_as(part)
            return tensor.index_copy(1, torch.tensor(chosen, device=tensor.device), replacement)

        for _, module in _choose(self._model, layers, heads):
            edits: list[Change] = getattr(_tap(module), kind)
            edits.append(change)
            self._undo.append((edits, change))

    def undo(self) -> None:
        for edits, change in self._undo:
            edits.remove(change)
        self._undo.clear()


@contextmanager
def edit(model: nn.Module) -> Iterator[Edit]:
    """Change heads while the block runs: zero, replace or patch their maps or outputs."""
    changes = Edit(model)
    try:
        yield changes
    finally:
        changes.undo()


def tapped(model: nn.Module) -> dict[str, nn.Module]:
    """Every module of the model whose attention can be seen, by name, in the order in which it was built."""
    return {name: module for name, module in model.named_modules() if isinstance(getattr(module, "tap", None), Tap)}


def _tap(module: nn.Module) -> Tap:
    assert isinstance(module.tap, Tap)
    return module.tap


def _choose(
    model: nn.Module, layers: Sequence[str | int] | str | int | None, heads: Sequence[int] | None
) -> list[tuple[str, nn.Module]]:
    modules = tapped(model)
    if not modules:
        raise ValueError(f"{type(model).__name__} has no attention to look at")
    names = list(modules)
    if layers is None:
        chosen = names
    else:
        chosen = []
        for wanted in [layers] if isinstance(layers, str | int) else layers:
            if isinstance(wanted, int):
                _check_range("layer", [wanted], len(names))
                matching = [names[wanted]]
            else:
                matching = fnmatch.filter(names, wanted)
            if not matching:
                raise ValueError(f"no attention layer is called {wanted!r}; there are {', '.join(names)}")
            chosen += [name for name in matching if name not in chosen]
    for name in chosen:
        count: int = modules[name].heads  # type: ignore[assignment]
        for head in heads or ():
            if not -count <= head < count:
                raise ValueError(f"{name} has no head {head}: valid are 0 to {count - 1}")
    return [(name, modules[name]) for name in chosen]


def _check_range(what: str, chosen: Sequence[int] | None, count: int) -> None:
    for index in chosen or ():
        if not -count <= index < count:
            raise ValueError(f"{what} {index} does not exist: valid are 0 to {count - 1}")
