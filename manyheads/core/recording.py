"""Recording of activations inside any model.

    with record(model, layers=["decoder.*.cross"], heads=[0, 3]) as maps:
        model(...)
    maps["decoder.blocks.0.cross"]      # one (B, 2, Tq, Tk) tensor per call, before dropout

    with record(model, of="residual") as states, record(model, of="head_outputs") as outputs:
        model(...)

    with record(model, gradients=True) as maps:
        model(...)[0, -1, word].backward()
    maps["decoder.blocks.0.attention"][0].grad

`manyheads.core.tap` lists the places, and `tapped(model, place)` the layer names of each, in the order in which the
layers were built.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar, get_args

from torch import Tensor, nn

from manyheads.calls import checked
from manyheads.core.tap import ATTENTION, Calculation, Place, Recording, Tap, check_range
from manyheads.errors import UserError

Layers = Sequence[str | int] | str | int | None
T = TypeVar("T")


class Maps(dict[str, list[Tensor]]):
    """Dictionary of recorded tensors. For each layer name, it contains a list with one tensor per call of the layer.

    `manyheads.core.tap` lists the shapes.
    """

    def __repr__(self) -> str:
        lines = [f"  {name}: {len(calls)} x {tuple(calls[0].shape)}" for name, calls in self.items() if calls]
        return "\n".join([f"Recording of {len(lines)} layers (calls x shape)", *lines])


@checked
@contextmanager
def record(
    model: nn.Module,
    layers: Layers = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
    *,
    of: Place = "attention",
    gradients: bool = False,
) -> Iterator[Maps]:
    """Record attention maps (per call and head, before dropout) or other activations while the `with` block runs.

    layers     layer names as `tapped(model, of)` lists them, shell patterns of names, or indices into that list. By
               default, all layers
    heads      indices of heads, in the order of the result. By default, all heads
    queries    indices of query rows, or of positions, negative from the end. By default, all. With a key-value cache,
               they count within each call
    of         place, such as "residual"; `manyheads.core.tap` lists all places with their shapes. Active edits apply
               first
    gradients  True to record the tensors of the graph themselves: after `backward()`, their `grad` is set, also if the
             parameters are frozen. Attention weights are then computed explicitly. By default, copies are recorded

    Raises UserError for a layer, head or position that does not exist, and for gradients where PyTorch computes none
    (in `torch.no_grad()` and in the methods of predictors); RuntimeError if no selected layer ran.

        >>> with manyheads.record(translator.model, layers=[0], heads=[1]) as maps:
        ...     translation = translator.translate("the cat", beam=1)
        >>> name, calls = next(iter(maps.items()))
        >>> calls[0].shape[1]  # one head of the first layer
        1
    """
    if gradients and not (heads is None and queries is None):
        raise UserError("gradients are recorded for all heads and positions: leave heads and queries out")
    taps = select_taps(model, of, layers, heads)
    maps = Maps({name: [] for name in taps})
    targets = [(tap.recordings, Recording(maps[name], of, heads, queries, gradients)) for name, tap in taps.items()]
    with _active(targets):
        yield maps
    _check_calls(maps)


@contextmanager
def record_calculations(
    model: nn.Module, layers: Layers = None, heads: Sequence[int] | None = None
) -> Iterator[dict[str, list[Calculation]]]:
    """Record the queries, keys, values, scale and bias of each attention while the `with` block runs.

    The arguments are those of `record`. Raises UserError for an attention whose weights are not a softmax over products
    of queries and keys.
    """
    taps = select_taps(model, "attention", layers, heads)
    calculations: dict[str, list[Calculation]] = {name: [] for name in taps}
    with _active([(tap.calculations, Recording(calculations[name], "attention", heads)) for name, tap in taps.items()]):
        yield calculations
    _check_calls(calculations)


@contextmanager
def _active(targets: Sequence[tuple[list[Recording[T]], Recording[T]]]) -> Iterator[None]:
    """Append each recording to the recordings of a tap while the `with` block runs."""
    for recordings, recording in targets:
        recordings.append(recording)
    try:
        yield
    finally:
        for recordings, recording in targets:
            recordings.remove(recording)


def _check_calls(calls: Mapping[str, list[T]]) -> None:
    if not any(calls.values()):
        raise RuntimeError(f"recorded nothing: none of {', '.join(calls)} ran inside the block")


def tapped(model: nn.Module, place: Place = "attention") -> dict[str, nn.Module]:
    """Return every module of the model that records this type of activation, by name, in the order of construction.

    >>> len(tapped(gpt.model)), len(tapped(gpt.model, "feed_forward"))
    (2, 2)
    """
    by_tap: dict[Tap, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules():
        tap = getattr(module, "tap", None)
        if isinstance(tap, Tap) and place in tap.places:
            # A model with fused inference kernels contains some modules twice, under two names.
            by_tap.setdefault(tap, (name, module))
    return dict(by_tap.values())


def select_taps(model: nn.Module, place: Place, layers: Layers, heads: Sequence[int] | None) -> dict[str, Tap]:
    """Return the taps of the selected layers, by layer name. The arguments are those of `record`."""
    if place not in get_args(Place):
        raise UserError(f"of is {place!r}: expected one of {', '.join(get_args(Place))}")
    modules, noun = tapped(model, place), place.replace("_", "-")
    if not modules:
        raise UserError(f"{type(model).__name__} has no {noun} layer to record or edit")
    if heads is not None and place not in ATTENTION:
        raise UserError(f"found heads {list(heads)} for {noun} layers, but only {', '.join(ATTENTION)} have heads")
    names = list(modules)
    if layers is None:
        selected = names
    else:
        selected = []
        for layer in [layers] if isinstance(layers, str | int) else layers:
            if isinstance(layer, int):
                check_range("layer", [layer], len(names))
                matching = [names[layer]]
            else:
                matching = fnmatch.filter(names, layer)
            if not matching:
                raise UserError(f"no {noun} layer matches {layer!r}: expected one of {', '.join(names)}")
            selected += [name for name in matching if name not in selected]
    if not selected:
        raise UserError(f"found no {noun} layer: expected one of {', '.join(names)}")
    for name in selected:
        for head in heads or ():
            count: int = modules[name].heads  # type: ignore[assignment]
            if not -count <= head < count:
                raise UserError(f"{name} has no head {head}: expected 0 to {count - 1}")
    return {name: modules[name].tap for name in selected}  # type: ignore[misc]  # `tapped` has checked the type.
