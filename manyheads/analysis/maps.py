"""The attention maps of one input: as arrays, as a table, as a picture, as a page.

`attention_maps(model, *inputs)` runs a model once and sorts what its heads looked at by axis:

    "encoder", "decoder", "cross"    of a model that has cross-attention
    "self"                           of every other one

`manyheads.load(MODEL).attend(...)` does so with the tokens' names. Every map has the exchange shape
(1, heads, queries, keys). A layer that runs several times in one pass (tied depth) gives one map for each step; where
its positions halt, a map tells of every position how many steps it took.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.analysis.image_maps import image_layer
from manyheads.analysis.sides import Side
from manyheads.core.tap import record, tapped
from manyheads.models.recurrence import Thoughts, pondered

if TYPE_CHECKING:
    from pandas import DataFrame

AXES = ("encoder", "decoder", "cross", "self")
Sides = Mapping[str, tuple[Side, Side]]


@dataclass(frozen=True)
class Layer:
    """What the heads of a layer looked at.

    name     as `record` calls the layer
    number   which of its axis, from 0
    weights  (1, heads, queries, keys) float32, before dropout
    heads    their numbers in the layer
    step     which of the layer's runs this is, from 1, where it runs several times in one pass
    """

    name: str
    number: int
    weights: NDArray[np.float32]
    heads: tuple[int, ...]
    queries: Side
    keys: Side
    step: int | None = None

    @property
    def halted(self) -> NDArray[np.bool_]:
        """(queries,): which took fewer steps. The state of such a position goes on, for others to look at, but where
        it looks is no longer part of what it returns."""
        if self.step is None or self.queries.steps is None:
            return np.zeros(len(self.queries), dtype=bool)
        return np.array(self.queries.steps) < self.step

    def words(self) -> Layer:
        """Sub-words merged: what a word's pieces get is added up, what they give is averaged (Clark 2019)."""
        queries, keys = self.queries.merged(), self.keys.merged()
        rows, columns = self.queries.groups(), self.keys.groups()  # (words, tokens) of 0 and 1
        running = rows * ~self.halted
        rows = np.where(running.any(1, keepdims=True), running, rows)  # pieces that have halted give nothing more
        merged = (rows / rows.sum(1, keepdims=True)) @ self.weights @ columns.T
        return replace(self, weights=merged.astype(np.float32), queries=queries, keys=keys)


@dataclass(frozen=True)
class AttentionMaps:
    """The maps of one input, by axis; `maps["cross"][0].weights` is an array (1, heads, queries, keys).

    model     whose they are
    title     of what input
    picture   (Y, X) or (Y, X, 3) uint8: the image that the model saw
    stepwise  axes whose queries come one after another: a text that is written or read from left to right
    """

    axes: dict[str, list[Layer]]
    model: str = ""
    title: str = ""
    picture: NDArray[np.uint8] | None = None
    stepwise: tuple[str, ...] = ()

    def __getitem__(self, axis: str) -> list[Layer]:
        return self.axes[_known_axis(axis, self.axes, self.model)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.axes)

    def __repr__(self) -> str:
        lines = [f"  {axis}: {len(layers)} x {layers[0].weights.shape}" for axis, layers in self.axes.items()]
        return "\n".join([f"AttentionMaps of {self.title!r} (layers x (1, heads, queries, keys))", *lines])

    def _repr_html_(self) -> str:
        from manyheads.analysis.map_page import frame

        return frame([self])

    def words(self) -> AttentionMaps:
        """The same with sub-words merged into words; patches and special tokens stay."""
        return replace(self, axes={axis: [layer.words() for layer in layers] for axis, layers in self.axes.items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `save` writes: "cross/0" is the first map of that axis. Beside it stand

        cross/0/name, layer, step          of the layer its name, its number within the axis, and which of its runs
                                           this is (only where it runs several times in one pass)
        cross/0/heads                      their numbers
        cross/0/queries, cross/0/keys      the tokens of both sides
        cross/0/queries/grid, keys/grid    the rows and columns of patches, where a side is an image
        cross/0/queries/steps, keys/steps  how many steps each position took, where positions halt
        """
        found: dict[str, NDArray[Any]] = {"model": np.array(self.model), "title": np.array(self.title)}
        for axis, layers in self.axes.items():
            for number, layer in enumerate(layers):
                at = f"{axis}/{number}"
                found |= {
                    at: layer.weights, f"{at}/name": np.array(layer.name), f"{at}/layer": np.array(layer.number),
                    f"{at}/heads": np.array(layer.heads),
                }  # fmt: skip
                if layer.step is not None:
                    found[f"{at}/step"] = np.array(layer.step)
                for name, side in (("queries", layer.queries), ("keys", layer.keys)):
                    found[f"{at}/{name}"] = np.array(side.tokens)
                    if side.grid is not None:
                        found[f"{at}/{name}/grid"] = np.array(side.grid)
                    if side.steps is not None:
                        found[f"{at}/{name}/steps"] = np.array(side.steps)
        return found

    def save(self, path: str | Path) -> None:
        """As NPZ, without pickles; see `arrays`."""
        with Path(path).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.arrays())

    def frame(self) -> DataFrame:
        """One row for every weight: axis, layer, step, head, both positions with their tokens, and the weight.

        Where positions halt, also `query_steps` and `key_steps`, how many each took.
        """
        try:
            import pandas
        except ImportError as error:
            raise ValueError(f"a data frame needs {error.name}: pip install 'manyheads[analysis]'") from None
        parts = []
        for axis, layers in self.axes.items():
            for layer in layers:
                _, heads, queries, keys = layer.weights.shape
                head, query, key = (each.ravel() for each in np.indices((heads, queries, keys)))
                sides = (("query", query, layer.queries), ("key", key, layer.keys))
                steps = {f"{name}_steps": np.array(side.steps)[at] for name, at, side in sides if side.steps}
                parts.append(pandas.DataFrame({
                    "axis": axis, "layer": layer.number, "step": layer.step, "head": np.array(layer.heads)[head],
                    "query": query, "key": key, "query_token": np.array(layer.queries.tokens)[query],
                    "key_token": np.array(layer.keys.tokens)[key], **steps, "weight": layer.weights.ravel(),
                }))  # fmt: skip
        return pandas.concat(parts, ignore_index=True)

    def page(self, path: str | Path, *others: AttentionMaps, first: int = 0) -> list[str]:
        """One interactive page that needs nothing else; `others` stand beside. Returns what had to be left out.

        first  the token that a page begins with, of a text that is longer than a page shows; from 0

        Raises ValueError for weights that are no numbers, and for a first token that no text can begin with.
        """
        from manyheads.analysis.map_page import page

        html, told = page([self, *others], first)
        Path(path).write_text(html, encoding="utf-8")
        return told

    def draw(self, path: str | Path, **choices: Any) -> list[str]:
        """A picture, PNG or SVG by the suffix; `choices` are those of `map_picture.draw`. Returns what it lacks."""
        from manyheads.analysis.map_picture import draw

        return draw(self, Path(path), **choices)


def attention_maps(
    model: nn.Module,
    *inputs: Tensor | None,
    sides: Sides | None = None,
    axis: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    name: str = "",
    title: str = "",
    picture: NDArray[np.uint8] | None = None,
    stepwise: Sequence[str] = (),
) -> AttentionMaps:
    """Run the model on one input, as its `forward` takes it, and keep where its heads look.

    sides   what queries and keys of an axis stand for; unless given, their positions, or the patches of an image
    axis    one of AXES; None for all that the model has
    layers  their numbers within each axis; where an axis is one layer that runs several times, those of its steps,
            which count from 1. heads: their numbers in each layer. Negative from the end, None for all

    The others become part of the result. Raises ValueError for an axis, layer or head that the model has not.
    """
    layers, heads = _numbers("layers", layers), _numbers("heads", heads)
    by_axis = _by_axis(model)
    if not by_axis:
        raise ValueError(f"{name or type(model).__name__} has no attention to look at")
    if axis is not None:
        by_axis = {axis: by_axis[_known_axis(axis, by_axis, name or type(model).__name__)]}
    chosen = {each: _chosen(each, names, layers) for each, names in by_axis.items()}
    modules, shapes, training = tapped(model), dict[str, torch.Size](), model.training
    with torch.no_grad(), ExitStack() as undo:
        undo.callback(model.train, training)
        for layer in (layer for names in chosen.values() for layer in names):

            def note(module: nn.Module, given: tuple[Any, ...], layer: str = layer) -> None:
                if given and isinstance(given[0], Tensor):
                    shapes[layer] = given[0].shape

            undo.callback(modules[layer].register_forward_pre_hook(note).remove)
        with record(model, [layer for names in chosen.values() for layer in names], heads) as maps, \
                pondered(model) as thoughts:  # fmt: skip
            model.eval()(*inputs)
    found: dict[str, list[Layer]] = {}
    for each, names in chosen.items():
        given = None if sides is None else sides.get(each)
        steps_taken = _steps_of(each, thoughts)
        for layer in names:
            count: int = modules[layer].heads  # type: ignore[assignment]
            numbers = tuple(range(count)) if heads is None else tuple(head % count for head in heads)
            calls = maps[layer]
            for step in _chosen_steps(each, by_axis[each], len(calls), layers):
                call = calls[step - 1]
                placed = image_layer(model, modules[layer], shapes.get(layer), call.float())
                weights, queries, keys = placed or (call.float(), *_fitting(given, call))
                if weights.dim() != 4 or len(weights) != 1:
                    raise ValueError(f"{layer} gave maps of shape {tuple(call.shape)}: expected those of one input")
                found.setdefault(each, []).append(Layer(
                    layer, by_axis[each].index(layer), weights.cpu().numpy(), numbers,
                    replace(queries, steps=steps_taken[0]), replace(keys, steps=steps_taken[1]),
                    step if len(calls) > 1 else None,
                ))  # fmt: skip
    return AttentionMaps(found, name, title, picture, tuple(each for each in stepwise if each in found))


def _by_axis(model: nn.Module) -> dict[str, list[str]]:
    """The names of the layers that can be seen, by axis, from the input on."""
    names = list(tapped(model))
    if not any(name.endswith(".cross") for name in names):
        return {"self": names} if names else {}
    found: dict[str, list[str]] = {axis: [] for axis in AXES}
    for name in names:
        room = name.partition(".")[0]
        found["cross" if name.endswith(".cross") else room if room in found else "self"].append(name)
    return {axis: several for axis, several in found.items() if several}


def _known_axis(axis: str, there: Mapping[str, Any], model: str) -> str:
    if axis not in there:
        raise ValueError(f"{model or 'the model'} has no {axis!r} attention: it has {', '.join(there)}")
    return axis


def _numbers(what: str, chosen: Any) -> list[int] | None:
    """Numbers as a caller gives them: a list, a tuple, an array."""
    if chosen is None:
        return None
    try:
        numbers = [index(each) for each in chosen]
    except TypeError:
        raise ValueError(f"{what} are {chosen!r}: expected whole numbers such as [0, 5], or None for all") from None
    if not numbers:
        raise ValueError(f"{what} are empty: there is nothing to look at; expected some numbers, or None for all")
    return numbers


def _chosen(axis: str, names: list[str], layers: Sequence[int] | None) -> list[str]:
    if layers is None or len(names) == 1:  # of one layer it is known only when it has run: see `_chosen_steps`
        return names
    return [names[layer] for layer in _chosen_of(f"{axis} layer", layers, range(len(names)))]


def _chosen_of(what: str, chosen: Sequence[int], there: range) -> list[int]:
    """Those numbers, negative ones from the end."""
    found = []
    for number in chosen:
        if number not in there and not -len(there) <= number < 0:
            raise ValueError(f"{what} {number} does not exist: valid are {there[0]} to {there[-1]}")
        found.append(there[number] if number < 0 else number)
    return found


def _chosen_steps(axis: str, names: list[str], count: int, layers: Sequence[int] | None) -> Sequence[int]:
    """Which runs of a layer, from 1: where it is the only one of its axis, they are what `layers` chooses."""
    if layers is None or len(names) > 1:
        return range(1, count + 1)
    if count == 1:
        _chosen_of(f"{axis} layer", layers, range(1))
        return [1]
    return _chosen_of(f"{axis} step", layers, range(1, count + 1))


def _steps_of(axis: str, thoughts: Thoughts) -> tuple[tuple[int, ...] | None, ...]:
    """How many steps each query and each key of an axis took, of one input."""
    taken = {stack: tuple(ponder.steps[0].int().tolist()) for stack, ponder in thoughts.items()}
    if axis == "cross":
        return taken.get("decoder"), taken.get("encoder")
    return (taken.get(axis) or next(iter(taken.values()), None),) * 2  # "self" is the only stack that there is


def _fitting(given: tuple[Side, Side] | None, call: Tensor) -> tuple[Side, Side]:
    """The sides of a map (1, H, Tq, Tk). What a model reads behind a text's end is padding."""
    sizes = call.shape[-2:]
    if given is None:
        return Side.positions(sizes[0]), Side.positions(sizes[1])
    queries, keys = (side.padded(size) for side, size in zip(given, sizes, strict=True))
    return queries, keys
