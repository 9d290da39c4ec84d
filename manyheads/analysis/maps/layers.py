"""Recorded attention maps of each layer, and their conversion to arrays and data frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from manyheads.analysis.maps.sides import Side
from manyheads.calls import checked_methods
from manyheads.errors import UserError, extra
from manyheads.files import JsonMapping, replacing

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Calculation:
    """Inputs of the attention in one layer, which computes softmax(scale * query @ key^T + added) @ value.

    query  queries, (heads, queries, Dh) float32
    key    keys, (heads, keys, Dh) float32
    value  values, (heads, keys, Dv) float32
    added  bias added to the scores, minus infinity at masked keys, (heads or 1, queries, keys) float32; None without
           bias and mask
    """

    query: NDArray[np.float32]
    key: NDArray[np.float32]
    value: NDArray[np.float32]
    scale: float
    added: NDArray[np.float32] | None

    def tables(self) -> dict[str, NDArray[np.float32]]:
        """Return the arrays that are present, by field name."""
        tables = {"query": self.query, "key": self.key, "value": self.value}
        return tables if self.added is None else tables | {"added": self.added}


@dataclass(frozen=True)
class Layer:
    """Attention map of one layer, for one input.

    name     name of the layer, as in `record`
    number   index of the layer, from 0, among the layers of the same axis (kind of attention)
    weights  attention weights before dropout, (1, heads, queries, keys) float32
    heads    indices of the recorded heads
    step     for a layer that is applied several times per forward pass: index of the application, from 1; otherwise
             None
    calculation  queries, keys and values from which the weights were computed, if requested
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
        """Mask (queries,) that is True at queries that halted before this step, in a model with adaptive halting.

        The hidden state of a halted position is still updated, because other positions may attend to it. The output of
        the position is frozen.
        """
        if self.step is None or self.queries.steps is None:
            return np.zeros(len(self.queries), dtype=bool)
        return np.array(self.queries.steps) < self.step

    def words(self) -> Layer:
        """Return the attention map between words instead of tokens, as in Clark et al. 2019, section 4.1.

        Attention to a word is the sum over the tokens of this word. Attention from a word is the mean over its tokens.
        """
        queries, keys = self.queries.merged(), self.keys.merged()
        # matrix (words, tokens) that is 1 if the token belongs to the word, otherwise 0
        rows, columns = self.queries.groups(), self.keys.groups()
        running = rows * ~self.halted
        # Query tokens that have halted do not count in the mean of their word.
        rows = np.where(running.any(1, keepdims=True), running, rows)
        merged = (rows / rows.sum(1, keepdims=True)) @ self.weights @ columns.T
        return replace(self, weights=merged.astype(np.float32), queries=queries, keys=keys, calculation=None)


@checked_methods
@dataclass(frozen=True)
class RecordedMaps:
    """Recorded attention maps of one input, grouped by kind of attention (axis).

    The axes are "encoder", "decoder" and "cross", or only "self". For example, `maps["cross"][0].weights` is the first
    cross-attention map, an array (1, heads, queries, keys).

    model     name of the model
    title     description of the input
    picture   (Y, X) or (Y, X, 3) uint8: the preprocessed image, if the input is an image
    stepwise  axes whose queries are read or generated from left to right
    prediction  most probable labels of the input, with their probabilities
    opening   what a page shows first: "axis", "layer" (from 0; of a layer that is applied several times, the step from
              1), "head" (from 0) and "view" ("lines", "matrix" or "picture"), each of them optional
    """

    axes: dict[str, list[Layer]]
    model: str = ""
    title: str = ""
    picture: NDArray[np.uint8] | None = None
    stepwise: tuple[str, ...] = ()
    prediction: tuple[tuple[str, float], ...] = ()
    opening: Mapping[str, str | int] = field(default_factory=dict)

    def __getitem__(self, axis: str) -> list[Layer]:
        return self.axes[known_axis(axis, self.axes, self.model)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.axes)

    def __repr__(self) -> str:
        lines = [f"  {axis}: {len(layers)} x {layers[0].weights.shape}" for axis, layers in self.axes.items()]
        return "\n".join([f"{type(self).__name__} of {self.title!r} (layers x (1, heads, queries, keys))", *lines])

    def words(self) -> Self:
        """Return the attention maps between words instead of tokens.

        Image patches and special tokens remain as they are. Calculations are dropped.

            >>> maps = bert.attend("the cat sat").words()
            >>> "cat" in maps["self"][0].keys.tokens
            True
        """
        return replace(self, axes={axis: [layer.words() for layer in layers] for axis, layers in self.axes.items()})

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of the NPZ file.

        The keys that start with "cross/0" belong to the first cross-attention map:

        cross/0/name, layer, step          name and index of the layer; step, if the layer is applied several times
        cross/0/heads                      indices of the heads
        cross/0/queries, cross/0/keys      tokens of queries and keys
        cross/0/queries/grid, keys/grid    number of rows and columns of image patches
        cross/0/queries/steps, keys/steps  number of steps of each position, for a model with adaptive halting
        cross/0/calculation/query, key, value, scale, added  inputs of the attention (see `Calculation`), if requested

            >>> arrays = bert.attend("the cat sat").arrays()
            >>> [str(token) for token in arrays["self/0/keys"][:2]]
            ['[CLS]', 'the']
        """
        arrays: dict[str, NDArray[np.generic]] = {"model": np.array(self.model), "title": np.array(self.title)}
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
        """Write an NPZ file with the arrays that the method `arrays` returns. The file contains no pickled objects.

        >>> bert.attend("the cat sat").save("maps.npz")
        """
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.arrays())

    def frame(self) -> DataFrame:
        """Return a data frame with one row per attention weight.

        The columns are axis, layer, step, head, position and token of the query and of the key, and weight. For a model
        with adaptive halting, the columns `query_steps` and `key_steps` hold the number of steps of each position.

            >>> frame = bert.attend("the cat sat").frame()
            >>> "weight" in frame.columns
            True
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


def known_axis(axis: str, axes: JsonMapping, model: str) -> str:
    """Return the name of the selected axis (kind of attention). Raise UserError if the model does not have it."""
    if axis not in axes:
        raise UserError(f"{model or 'the model'} has no {axis!r} attention: it has {', '.join(axes)}")
    return axis
