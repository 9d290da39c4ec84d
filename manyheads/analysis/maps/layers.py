"""What the heads of a model looked at, layer by layer, and the forms that it is shown in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from manyheads.analysis.maps.sides import Side
from manyheads.errors import UserError, extra
from manyheads.files import replacing

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Calculation:
    """What a layer's maps and its heads' outputs come from: softmax(scale * query @ key^T + added) @ value.

    query (heads, queries, Dh), key (heads, keys, Dh), value (heads, keys, Dv), all float32
    added  (heads or 1, queries, keys): a bias, and minus infinity where a mask hides a key; None: neither
    """

    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]
    scale: float
    added: NDArray[np.float32] | None

    def tables(self) -> dict[str, NDArray[np.float32]]:
        """All that are there, by name."""
        tables = {"query": self.query, "key": self.key, "value": self.value}
        return tables if self.added is None else tables | {"added": self.added}


@dataclass(frozen=True)
class Layer:
    """What the heads of a layer looked at.

    name     as `record` calls the layer
    number   which of its axis, from 0
    weights  (1, heads, queries, keys) float32, before dropout
    heads    their numbers in the layer
    step     which of the layer's runs this is, from 1, where it runs several times in one pass
    calculation  what the weights were computed from, where that was asked for
    """

    name: str
    number: int
    weights: NDArray[np.float32]
    heads: tuple[int, ...]
    queries: Side
    keys: Side
    step: int | None = None
    calculation: Calculation | None = None

    @property
    def shares(self) -> bool:
        """Whether the weights are shares of each query's attention, as a softmax gives them."""
        sums = self.weights.sum(-1)
        return bool((self.weights >= 0).all() and ((np.abs(sums - 1) < 0.02) | (sums == 0)).all())

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
        return replace(self, weights=merged.astype(np.float32), queries=queries, keys=keys, calculation=None)


@dataclass(frozen=True)
class RecordedMaps:
    """The maps of one input as data, by axis; `maps["cross"][0].weights` is an array (1, heads, queries, keys).

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
        return self.axes[known_axis(axis, self.axes, self.model)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.axes)

    def __repr__(self) -> str:
        lines = [f"  {axis}: {len(layers)} x {layers[0].weights.shape}" for axis, layers in self.axes.items()]
        return "\n".join([f"{type(self).__name__} of {self.title!r} (layers x (1, heads, queries, keys))", *lines])

    def words(self) -> Self:
        """The same with sub-words merged into words; patches and special tokens stay, calculations do not."""
        return replace(self, axes={axis: [layer.words() for layer in layers] for axis, layers in self.axes.items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `save` writes: "cross/0" is the first map of that axis. Beside it stand

        cross/0/name, layer, step          of the layer its name, its number within the axis, and which of its runs
                                           this is (only where it runs several times in one pass)
        cross/0/heads                      their numbers
        cross/0/queries, cross/0/keys      the tokens of both sides
        cross/0/queries/grid, keys/grid    the rows and columns of patches, where a side is an image
        cross/0/queries/steps, keys/steps  how many steps each position took, where positions halt
        cross/0/calculation/query, key, value, scale, added  see `Calculation`, where that was asked for
        """
        arrays: dict[str, NDArray[Any]] = {"model": np.array(self.model), "title": np.array(self.title)}
        for axis, layers in self.axes.items():
            for number, layer in enumerate(layers):
                at = f"{axis}/{number}"
                arrays |= {
                    at: layer.weights, f"{at}/name": np.array(layer.name), f"{at}/layer": np.array(layer.number),
                    f"{at}/heads": np.array(layer.heads),
                }  # fmt: skip
                if layer.step is not None:
                    arrays[f"{at}/step"] = np.array(layer.step)
                if layer.calculation is not None:
                    arrays[f"{at}/calculation/scale"] = np.array(layer.calculation.scale)
                    tables = layer.calculation.tables().items()
                    arrays |= {f"{at}/calculation/{name}": table for name, table in tables}
                for name, side in (("queries", layer.queries), ("keys", layer.keys)):
                    arrays[f"{at}/{name}"] = np.array(side.tokens)
                    if side.grid is not None:
                        arrays[f"{at}/{name}/grid"] = np.array(side.grid)
                    if side.steps is not None:
                        arrays[f"{at}/{name}/steps"] = np.array(side.steps)
        return arrays

    def save(self, path: str | Path) -> None:
        """As NPZ, without pickles; see `arrays`."""
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.arrays())

    def frame(self) -> DataFrame:
        """One row for every weight: axis, layer, step, head, both positions with their tokens, and the weight.

        Where positions halt, also `query_steps` and `key_steps`, how many each took.
        """
        with extra("analysis", "a data frame"):
            import pandas
        parts = []
        for axis, layers in self.axes.items():
            for layer in layers:
                _, heads, queries, keys = layer.weights.shape
                head, query, key = (indices.ravel() for indices in np.indices((heads, queries, keys)))
                sides = (("query", query, layer.queries), ("key", key, layer.keys))
                steps = {f"{name}_steps": np.array(side.steps)[at] for name, at, side in sides if side.steps}
                parts.append(pandas.DataFrame({
                    "axis": axis, "layer": layer.number, "step": layer.step, "head": np.array(layer.heads)[head],
                    "query": query, "key": key, "query_token": np.array(layer.queries.tokens)[query],
                    "key_token": np.array(layer.keys.tokens)[key], **steps, "weight": layer.weights.ravel(),
                }))  # fmt: skip
        return pandas.concat(parts, ignore_index=True)


def known_axis(axis: str, axes: Mapping[str, Any], model: str) -> str:
    """Raises UserError for an axis that the model has not."""
    if axis not in axes:
        raise UserError(f"{model or 'the model'} has no {axis!r} attention: it has {', '.join(axes)}")
    return axis
