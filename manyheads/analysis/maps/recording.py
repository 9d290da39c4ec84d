"""Recording of a model's attention maps for one input, grouped by kind: encoder, decoder, cross or self."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import index
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.analysis.maps.attention_maps import AttentionMaps
from manyheads.analysis.maps.layers import Calculation, Layer, known_axis
from manyheads.analysis.maps.sides import Side
from manyheads.core import tap
from manyheads.core.interface import ReadsImages
from manyheads.core.recording import record, record_calculations, tapped
from manyheads.core.runtime import eval_mode
from manyheads.core.tap import Grid
from manyheads.errors import UserError
from manyheads.models.recurrence import HaltingStatistics, record_halting

AXES = ("encoder", "decoder", "cross", "self")
Sides = Mapping[str, tuple[Side, Side]]


@dataclass(frozen=True)
class MapOptions:
    """Selection of attention maps by axis (kind of attention), layer and head.

    axis         name of the axis, one of AXES. By default, all axes that the model has
    layers       layer indices within each axis; negative indices count from the end. If an axis has a single layer that
                 is applied several times, the numbers select applications (steps), from 1. By default, all layers
    heads        head indices in each layer; negative indices count from the end. By default, all heads
    calculation  True to record also the queries, keys and values of the attention (`Layer.calculation`)
    """

    axis: str | None = None
    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    calculation: bool = False


class _Recording(NamedTuple):
    """Data recorded in one forward pass.

    maps          attention maps of each layer, by the name of the layer
    calculations  queries, keys and values of each layer
    shapes        input shape of each layer
    thoughts      number of steps of each position, for a model with adaptive halting
    """

    maps: Mapping[str, list[Tensor]]
    calculations: Mapping[str, list[tap.Calculation]]
    shapes: Mapping[str, torch.Size]
    thoughts: HaltingStatistics


def attention_maps(
    model: nn.Module,
    *inputs: Tensor | None,
    options: MapOptions = MapOptions(),
    sides: Sides | None = None,
    name: str = "",
    title: str = "",
    picture: NDArray[np.uint8] | None = None,
    stepwise: Sequence[str] = (),
) -> AttentionMaps:
    """Run the model on one input and return its attention maps.

    inputs  arguments of the model's `forward`
    sides   names of the queries and keys of each axis; default: token indices, or the patches of an image

    The other arguments become fields of the result. Raises UserError for an axis, layer or head that the model does not
    have.
    """
    selection = _Selection.of(model, options, name or type(model).__name__)
    recording = _record(model, inputs, selection, calculation=options.calculation)
    axes = {axis: _layers(model, recording, selection, axis, (sides or {}).get(axis)) for axis in selection.names}
    return AttentionMaps(axes, name, title, picture, tuple(axis for axis in stepwise if axis in axes))


class _Selection(NamedTuple):
    """Layers and heads whose attention maps are recorded.

    every  names of all attention layers, by axis (kind of attention)
    names  names of the selected layers, by axis
    layers, heads  selected indices; None for all
    """

    every: Mapping[str, list[str]]
    names: Mapping[str, list[str]]
    layers: list[int] | None
    heads: list[int] | None

    @classmethod
    def of(cls, model: nn.Module, options: MapOptions, called: str) -> Self:
        """Create the selection for a model. Raise UserError if the model has no such axis, layer or head.

        called  name of the model for error messages
        """
        layers, heads = to_indices("layers", options.layers), to_indices("heads", options.heads)
        every = _layers_by_axis(model)
        if not every:
            raise UserError(f"{called} has no attention layers")
        axes = every if options.axis is None else [known_axis(options.axis, every, called)]
        return cls(every, {axis: _select_layers(axis, every[axis], layers) for axis in axes}, layers, heads)


def _record(
    model: nn.Module, inputs: Sequence[Tensor | None], selection: _Selection, *, calculation: bool
) -> _Recording:
    """Run the model once, and record the attention maps of the selected layers."""
    names = [name for of_axis in selection.names.values() for name in of_axis]
    modules, shapes = tapped(model), dict[str, torch.Size]()
    with eval_mode(model), ExitStack() as undo:
        for name in names:

            def note(module: nn.Module, arguments: tuple[object, ...], name: str = name) -> None:
                if arguments and isinstance(arguments[0], Tensor):
                    shapes[name] = arguments[0].shape

            undo.callback(modules[name].register_forward_pre_hook(note).remove)
        if calculation:
            calculations = undo.enter_context(record_calculations(model, names, selection.heads))
        with record(model, names, selection.heads) as maps, record_halting(model) as thoughts:
            model(*inputs)
    return _Recording(maps, calculations if calculation else {}, shapes, thoughts)


def _layers(
    model: nn.Module, recording: _Recording, selection: _Selection, axis: str, sides: tuple[Side, Side] | None
) -> list[Layer]:
    """Return the recorded attention maps of one axis (kind of attention).

    A layer that the model applies several times appears once for each selected step.
    """
    query_steps, key_steps = _halting_steps(axis, recording.thoughts)
    every, layers, modules = selection.every[axis], [], tapped(model)
    for name in selection.names[axis]:
        module = modules[name]
        count = module.heads
        assert isinstance(count, int)
        heads = tuple(range(count) if selection.heads is None else (head % count for head in selection.heads))
        calls = recording.maps[name]
        for step in _select_steps(axis, every, len(calls), selection.layers):
            call = calls[step - 1].float()
            over_image = _over_image(model, module, recording.shapes.get(name), call)
            weights, queries, keys = over_image or (call, *_pad_sides(sides, call))
            if weights.dim() != 4 or len(weights) != 1:
                raise UserError(f"{name} recorded maps of shape {tuple(call.shape)}: expected those of one input")
            calculations = recording.calculations.get(name)
            layers.append(Layer(
                name, every.index(name), weights.cpu().numpy(), heads,
                replace(queries, steps=query_steps), replace(keys, steps=key_steps),
                step if len(calls) > 1 else None,
                None if calculations is None else _calculation(calculations[step - 1], len(heads)),
            ))  # fmt: skip
    return layers


def _calculation(call: tap.Calculation, heads: int) -> Calculation:
    """Return the queries, keys, values and bias of the attention for one text, as arrays.

    The array `added` holds bias and mask, in one table that all heads share or in one table per head.
    """
    query, key, value = (part[0].float().cpu().numpy() for part in call[:3])  # (h, T, D)
    added = None
    if call.added is not None:
        shape = (1 if call.added.dim() < 3 or call.added.shape[-3] == 1 else heads, query.shape[1], key.shape[1])
        whole = call.added.float().reshape(call.added.shape[-3:]).expand(shape)
        added = whole.cpu().numpy() if not bool((whole == 0).all()) else None
    return Calculation(query, key, value, call.scale, added)


@runtime_checkable
class _OnGrids(Protocol):
    """Attention layer over the pixels of images."""

    def grids(self, shape: torch.Size) -> tuple[Grid, Grid]:
        """Return the grids of queries and keys for an input of this shape."""


@runtime_checkable
class _Local(Protocol):
    """Attention layer whose maps cover the neighborhood of each pixel."""

    def over_image(self, maps: Tensor, shape: torch.Size) -> Tensor:
        """Return the maps over the whole image, (B, H, Y * X, Y * X)."""


def _over_image(
    model: nn.Module, module: nn.Module, shape: torch.Size | None, call: Tensor
) -> tuple[Tensor, Side, Side] | None:
    """Return the map (1, H, Tq, Tk) and the names of queries and keys, for a layer that attends over image patches.

    The result is None for other layers.

    shape  shape of the layer's input
    """
    grids = None
    if isinstance(module, _OnGrids):
        assert shape is not None
        grids = module.grids(shape)
    # A ViT arranges patches in a sequence, so the input shape of a layer does not show the grid of patches.
    elif isinstance(model, ReadsImages):
        grids = model.grids
    if grids is None:
        return None
    queries, keys = (Side.patches(grid[:2], grid.tokens, grid.cover) for grid in grids)
    whole = module.over_image(call, shape) if isinstance(module, _Local) and shape is not None else call
    return whole, queries, keys


def _layers_by_axis(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of the attention layers, grouped by axis (kind of attention), in the order of the network."""
    names = list(tapped(model))
    if not any(name.endswith(".cross") for name in names):
        return {"self": names} if names else {}
    by_axis: dict[str, list[str]] = {axis: [] for axis in AXES}
    for name in names:
        stack = name.partition(".")[0]
        by_axis["cross" if name.endswith(".cross") else stack if stack in by_axis else "self"].append(name)
    return {axis: layers for axis, layers in by_axis.items() if layers}


def to_indices(what: str, chosen: Sequence[int] | None) -> list[int] | None:
    """Convert indices in a list, tuple or array to a list of int."""
    if chosen is None:
        return None
    try:
        numbers = [index(number) for number in chosen]
    except TypeError:
        raise UserError(f"{what} are {chosen!r}: expected whole numbers such as [0, 5], or None for all") from None
    if not numbers:
        raise UserError(f"{what} are empty: expected at least one number, or None for all")
    return numbers


def _select_layers(axis: str, names: list[str], layers: Sequence[int] | None) -> list[str]:
    # If an axis has a single layer, the option `layers` selects the steps of this layer, see `_select_steps`.
    if layers is None or len(names) == 1:
        return names
    return [names[layer] for layer in select_indices(f"{axis} layer", layers, range(len(names)))]


def select_indices(what: str, chosen: Sequence[int], valid: range) -> list[int]:
    """Return the selected indices of a range. Negative indices count from the end."""
    for number in chosen:
        if number not in valid and not -len(valid) <= number < 0:
            raise UserError(f"{what} {number} does not exist: valid are {valid[0]} to {valid[-1]}")
    return [valid[number] if number < 0 else number for number in chosen]


def _select_steps(axis: str, names: list[str], count: int, layers: Sequence[int] | None) -> Sequence[int]:
    """Return the selected steps of a layer that is applied several times. Steps are counted from 1.

    If the layer is the only layer of an axis, the option `layers` selects the steps. Otherwise all steps are selected.
    """
    if layers is None or len(names) > 1:
        return range(1, count + 1)
    if count == 1:
        select_indices(f"{axis} layer", layers, range(1))
        return [1]
    return select_indices(f"{axis} step", layers, range(1, count + 1))


def _halting_steps(axis: str, thoughts: HaltingStatistics) -> tuple[tuple[int, ...] | None, ...]:
    """Return the number of halting steps of each query and each key, for one axis (kind of attention)."""
    taken = {stack: tuple(ponder.steps[0].int().tolist()) for stack, ponder in thoughts.items()}
    if axis == "cross":
        return taken.get("decoder"), taken.get("encoder")
    # A model with the axis "self" has a single stack of layers, so the steps of this stack are used.
    return (taken.get(axis) or next(iter(taken.values()), None),) * 2


def _pad_sides(sides: tuple[Side, Side] | None, call: Tensor) -> tuple[Side, Side]:
    """Return the names of the queries and keys of an attention map (1, H, Tq, Tk).

    Positions after the end of the text are named as padding.
    """
    sizes = call.shape[-2:]
    if sides is None:
        return Side.positions(sizes[0]), Side.positions(sizes[1])
    queries, keys = (side.padded(size) for side, size in zip(sides, sizes, strict=True))
    return queries, keys
