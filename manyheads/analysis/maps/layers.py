"""Recorded attention maps by layer, and their conversion to arrays and data frames."""

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
    """Inputs of a layer's attention, softmax(scale * query @ key^T + added) @ value.

    query (heads, queries, Dh), key (heads, keys, Dh), value (heads, keys, Dv), all float32
    added  (heads or 1, queries, keys): bias, and minus infinity at masked keys; None without bias and mask
    """

    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]
    scale: float
    added: NDArray[np.float32] | None

    def tables(self) -> dict[str, NDArray[np.float32]]:
        """Return the tables that are present, by name."""
        tables = {"query": self.query, "key": self.key, "value": self.value}
        return tables if self.added is None else tables | {"added": self.added}


@dataclass(frozen=True)
class Layer:
    """Attention map of one layer.

    name     name of the layer, as in `record`
    number   index of the layer within its axis, from 0
    weights  (1, heads, queries, keys) float32, before dropout
    heads    indices of the heads in the layer
    step     index of the run, from 1, for a layer that runs several times per pass; otherwise None
    calculation  inputs of the attention, if requested
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
        """True if the weights of each query sum to one, as after a softmax."""
        sums = self.weights.sum(-1)
        return bool((self.weights >= 0).all() and ((np.abs(sums - 1) < 0.02) | (sums == 0)).all())

    @property
    def halted(self) -> NDArray[np.bool_]:
        """Mask (queries,) of positions that halted before this step.

        The state of a halted position is still updated, so that others can attend to it, but its output is frozen.
        """
        if self.step is None or self.queries.steps is None:
            return np.zeros(len(self.queries), dtype=bool)
        return np.array(self.queries.steps) < self.step

    def words(self) -> Layer:
        """Return the map between words: a word's keys are added, its queries are averaged (Clark 2019)."""
        queries, keys = self.queries.merged(), self.keys.merged()
        rows, columns = self.queries.groups(), self.keys.groups()  # (words, tokens) of 0 and 1
        running = rows * ~self.halted
        rows = np.where(running.any(1, keepdims=True), running, rows)  # exclude tokens of a word that have halted
        merged = (rows / rows.sum(1, keepdims=True)) @ self.weights @ columns.T
        return replace(self, weights=merged.astype(np.float32), queries=queries, keys=keys, calculation=None)


@dataclass(frozen=True)
class RecordedMaps:
    """Recorded maps of one input, by axis. `maps["cross"][0].weights` is an array (1, heads, queries, keys).

    model     name of the model
    title     description of the input
    picture   (Y, X) or (Y, X, 3) uint8: the preprocessed image
    stepwise  axes whose queries are read or generated from left to right
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
        """Return the maps between words. Patches and special tokens stay; calculations are dropped."""
        return replace(self, axes={axis: [layer.words() for layer in layers] for axis, layers in self.axes.items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the content of the NPZ file. "cross/0" is the first map of that axis, with

        cross/0/name, layer, step          name and index of the layer, and the step if it runs several times per pass
        cross/0/heads                      indices of the heads
        cross/0/queries, cross/0/keys      tokens of queries and keys
        cross/0/queries/grid, keys/grid    rows and columns of image patches
        cross/0/queries/steps, keys/steps  number of steps of each position, with halting
        cross/0/calculation/query, key, value, scale, added  see `Calculation`, if requested
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
        """Write an NPZ file without pickles; see `arrays`."""
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.arrays())

    def frame(self) -> DataFrame:
        """Return a data frame with one row per weight: axis, layer, step, head, both positions with their tokens, and
        weight.

        With halting, the columns `query_steps` and `key_steps` hold the number of steps of each position.
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
    """Return `axis`. Raise UserError if the model does not have it."""
    if axis not in axes:
        raise UserError(f"{model or 'the model'} has no {axis!r} attention: it has {', '.join(axes)}")
    return axis
