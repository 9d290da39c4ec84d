"""Runs a model on one input and sorts its attention maps by axis, with what their queries and keys stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from manyheads.analysis.maps.layers import AttentionMaps, Calculation, Layer, known_axis
from manyheads.analysis.maps.sides import Side
from manyheads.core import tap
from manyheads.core.runtime import evaluating
from manyheads.core.tap import record, record_calculations, tapped
from manyheads.errors import UserError
from manyheads.models.recurrence import Thoughts, pondered

AXES = ("encoder", "decoder", "cross", "self")
Sides = Mapping[str, tuple[Side, Side]]


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
    calculation: bool = False,
) -> AttentionMaps:
    """Run the model on one input, as its `forward` takes it, and keep where its heads look.

    sides   what queries and keys of an axis stand for; unless given, their positions, or the patches of an image
    axis    one of AXES; None for all that the model has
    layers  their numbers within each axis; where an axis is one layer that runs several times, those of its steps,
            which count from 1. heads: their numbers in each layer. Negative from the end, None for all
    calculation  also keep what the maps are computed from: `Layer.calculation`

    The others become part of the result. Raises UserError for an axis, layer or head that the model has not.
    """
    layers, heads = _numbers("layers", layers), _numbers("heads", heads)
    by_axis = _by_axis(model)
    if not by_axis:
        raise UserError(f"{name or type(model).__name__} has no attention to look at")
    if axis is not None:
        by_axis = {axis: by_axis[known_axis(axis, by_axis, name or type(model).__name__)]}
    chosen = {axis: _chosen(axis, names, layers) for axis, names in by_axis.items()}
    modules, shapes = tapped(model), dict[str, torch.Size]()
    with evaluating(model), ExitStack() as undo:
        for layer in (layer for names in chosen.values() for layer in names):

            def note(module: nn.Module, arguments: tuple[Any, ...], layer: str = layer) -> None:
                if arguments and isinstance(arguments[0], Tensor):
                    shapes[layer] = arguments[0].shape

            undo.callback(modules[layer].register_forward_pre_hook(note).remove)
        wanted = [layer for names in chosen.values() for layer in names]
        calculations = undo.enter_context(record_calculations(model, wanted, heads)) if calculation else {}
        with record(model, wanted, heads) as maps, pondered(model) as thoughts:
            model(*inputs)
    axes: dict[str, list[Layer]] = {}
    for axis, names in chosen.items():
        query_steps, key_steps = _steps_of(axis, thoughts)
        for layer in names:
            count: int = modules[layer].heads  # type: ignore[assignment]
            numbers = tuple(range(count)) if heads is None else tuple(head % count for head in heads)
            calls = maps[layer]
            for step in _chosen_steps(axis, by_axis[axis], len(calls), layers):
                call = calls[step - 1].float()
                weights, queries, keys = _over_image(model, modules[layer], shapes.get(layer), call) or (
                    call, *_fitting(None if sides is None else sides.get(axis), call)
                )  # fmt: skip
                if weights.dim() != 4 or len(weights) != 1:
                    raise UserError(f"{layer} gave maps of shape {tuple(call.shape)}: expected those of one input")
                axes.setdefault(axis, []).append(Layer(
                    layer, by_axis[axis].index(layer), weights.cpu().numpy(), numbers,
                    replace(queries, steps=query_steps), replace(keys, steps=key_steps),
                    step if len(calls) > 1 else None,
                    _calculation(calculations[layer][step - 1], len(numbers)) if calculation else None,
                ))  # fmt: skip
    return AttentionMaps(axes, name, title, picture, tuple(axis for axis in stepwise if axis in axes))


def _calculation(call: tap.Calculation, heads: int) -> Calculation:
    """That of one text, as arrays; what is added has its whole size, and one table where all heads share it."""
    query, key, value = (part[0].float().cpu().numpy() for part in call[:3])  # (h, T, D)
    added = None
    if call.added is not None:
        shape = (1 if call.added.dim() < 3 or call.added.shape[-3] == 1 else heads, query.shape[1], key.shape[1])
        whole = call.added.float().reshape(call.added.shape[-3:]).expand(shape)
        added = whole.cpu().numpy() if not bool((whole == 0).all()) else None
    return Calculation(query, key, value, call.scale, added)


def _over_image(model: Any, module: Any, shape: torch.Size | None, call: Tensor) -> tuple[Tensor, Side, Side] | None:
    """The map (1, H, Tq, Tk) and its sides, of a layer that works on an image; None for one that does not.

    shape  of the layer's input
    """
    if hasattr(module, "grids"):
        grids = module.grids(shape)
    elif hasattr(model, "grids"):  # a ViT's layers are those of any encoder
        grids = model.grids()
    else:
        return None
    queries, keys = (Side.patches(grid[:2], grid.tokens, grid.cover) for grid in grids)
    return module.over_image(call, shape) if hasattr(module, "over_image") else call, queries, keys


def _by_axis(model: nn.Module) -> dict[str, list[str]]:
    """The names of the layers that can be seen, by axis, from the input on."""
    names = list(tapped(model))
    if not any(name.endswith(".cross") for name in names):
        return {"self": names} if names else {}
    by_axis: dict[str, list[str]] = {axis: [] for axis in AXES}
    for name in names:
        stack = name.partition(".")[0]
        by_axis["cross" if name.endswith(".cross") else stack if stack in by_axis else "self"].append(name)
    return {axis: layers for axis, layers in by_axis.items() if layers}


def _numbers(what: str, chosen: Any) -> list[int] | None:
    """Numbers as a caller gives them: a list, a tuple, an array."""
    if chosen is None:
        return None
    try:
        numbers = [index(number) for number in chosen]
    except TypeError:
        raise UserError(f"{what} are {chosen!r}: expected whole numbers such as [0, 5], or None for all") from None
    if not numbers:
        raise UserError(f"{what} are empty: there is nothing to look at; expected some numbers, or None for all")
    return numbers


def _chosen(axis: str, names: list[str], layers: Sequence[int] | None) -> list[str]:
    if layers is None or len(names) == 1:  # `layers` may count the runs of a single layer: see `_chosen_steps`
        return names
    return [names[layer] for layer in _chosen_of(f"{axis} layer", layers, range(len(names)))]


def _chosen_of(what: str, chosen: Sequence[int], valid: range) -> list[int]:
    """Those numbers, negative ones from the end."""
    for number in chosen:
        if number not in valid and not -len(valid) <= number < 0:
            raise UserError(f"{what} {number} does not exist: valid are {valid[0]} to {valid[-1]}")
    return [valid[number] if number < 0 else number for number in chosen]


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


def _fitting(sides: tuple[Side, Side] | None, call: Tensor) -> tuple[Side, Side]:
    """The sides of a map (1, H, Tq, Tk). What a model reads behind a text's end is padding."""
    sizes = call.shape[-2:]
    if sides is None:
        return Side.positions(sizes[0]), Side.positions(sizes[1])
    queries, keys = (side.padded(size) for side, size in zip(sides, sizes, strict=True))
    return queries, keys
