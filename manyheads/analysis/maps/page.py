"""Interactive HTML page with attention maps, which needs no network, server or other file.

The page is `assets/page.html` with its style, scripts and data. Attention weights are quantized: for each head, the
square root of weight / maximum in 255 steps (127 in each direction for negative weights). The error is at most 0.4% of
the head's maximum. All maps of an input form one zlib stream in base64, which browsers decompress themselves.
Calculations (queries, keys and values) form a second stream of exact float32 values.

Large inputs are reduced, and a note on the page says so. Of a text, at most SHOWN tokens are shown, from a given token
on. An image has at most PATCHES patches: neighboring patches are merged (weights are added over keys and averaged over
queries).
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.analysis.drawing import short_name
from manyheads.analysis.maps.layers import Layer, RecordedMaps
from manyheads.analysis.maps.sides import Side
from manyheads.errors import UserError
from manyheads.files import JsonObject

SHOWN = 256  # maximum number of tokens of a text on a page
PATCHES = 32 * 32  # maximum number of image patches on a page
NUMBERS = 2**20  # maximum number of values in all queries, keys and values on a page; they take about 5 MB of the file
SMALL = 96  # maximum side in pixels of an image that is shown with sharp pixels
TITLE = 60  # maximum number of characters of an input's title in a note
# scripts of the page, in the order of their dependencies
SCRIPTS = ("common.js", "maps.js", "views.js", "calculation.js", "save.js", "panel.js", "heat.js", "page.js")
TEXT_NAMES = {"encoder": ("source ", "source "), "decoder": ("target ", "target "), "cross": ("target ", "source ")}
HEIGHT = 760  # height in pixels of a frame in a notebook, until the page inside has reported its own


def page(inputs: Sequence[RecordedMaps], first: int = 0, findings: Sequence[JsonObject] = ()) -> tuple[str, list[str]]:
    """Return an HTML page with the attention maps of one or more inputs side by side, and notes about omitted parts.

    findings  results of other analyses of these inputs (`HeatMaps.finding`), which are shown above the attention maps
    """
    sides = [side for maps in inputs for layers in maps.axes.values() for layer in layers
             for side in (layer.queries, layer.keys)]  # fmt: skip
    longest = max((len(side) for side in sides if side.grid is None), default=0)
    if first < 0:
        raise UserError(f"first is {first}: expected the index of a token, 0 or more")
    if first and not SHOWN < longest > first:
        there = f"the text has {longest:,} tokens" if longest > SHOWN else f"all {longest} tokens of the text are shown"
        raise UserError(
            f"a page cannot begin with token {first + 1:,}: {there if longest else 'the input is not a text'}"
        )
    _check_calculations(inputs)
    notes: list[str] = []
    panels = [panel(maps, first, notes) for maps in inputs]
    # Users send pages to others, so a page shows the directory of a model, not its whole path, if this is unambiguous.
    short = {maps.model: short_name(maps.model) for maps in inputs if maps.model}
    if len(set(short.values())) == len(short):
        for each in panels:
            each["model"] = short.get(each["model"], each["model"])
    models = " and ".join(dict.fromkeys(each["model"] or "a model" for each in panels))
    data = {"panels": panels, "findings": list(findings)}
    heading = findings[0]["heading"] if findings else "Attention"
    return assemble(heading, "maps-help.html", SCRIPTS, f"Attention of {models}", data), notes


def assemble(heading: str, help: str, scripts: Sequence[str], title: str, data: JsonObject) -> str:
    """Return an HTML page with its scripts and data. The help and the scripts are names of files in `assets`."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    style, script = ("".join(map(_asset, names)) for names in (("page.css", "lens.css"), scripts))
    parts = {
        "title": html.escape(title), "style": style, "heading": html.escape(heading), "help": _asset(help),
        "script": script, "data": text,
    }  # fmt: skip
    # All placeholders are replaced in one pass, because the inserted data may contain placeholders.
    return re.sub(r"{{(\w+)}}", lambda place: parts[place[1]], _asset("page.html"))


def _check_calculations(inputs: Sequence[RecordedMaps]) -> None:
    """Raise UserError if the queries, keys and values are too large for a page, or have more keys than a page shows."""
    layers = [layer for maps in inputs for layers in maps.axes.values() for layer in layers if layer.calculation]
    hint = "select fewer layers or heads (--axis, --layers, --heads), or shorten the text"
    if (longest := max((max(layer.weights.shape[2:]) for layer in layers), default=0)) > SHOWN:
        raise UserError(f"calculations of {longest:,} tokens: expected at most {SHOWN}: shorten the text")
    numbers = sum(table.size for layer in layers if layer.calculation for table in layer.calculation.tables().values())
    if numbers > NUMBERS:
        raise UserError(f"the calculations have {numbers:,} values, expected at most {NUMBERS:,}: {hint}")


def frame(inputs: Sequence[RecordedMaps]) -> str:
    """Return the page as an HTML element for a notebook."""
    return framed(page(inputs)[0], "Attention maps")


def framed(text: str, title: str) -> str:
    """Return an HTML page as an HTML element for a notebook."""
    return (
        f'<iframe class="manyheads" srcdoc="{html.escape(text)}" '
        f'style="width:100%;height:{HEIGHT}px;border:0" sandbox="allow-scripts allow-downloads" '
        f'title="{title}"></iframe><script>{_asset("frame.js")}</script>'
    )


def _asset(name: str) -> str:
    return (files("manyheads.analysis.maps") / "assets" / name).read_text(encoding="utf-8")


def panel(maps: RecordedMaps, first: int, all_notes: list[str]) -> JsonObject:
    """Return the attention maps of one input as data for the scripts of the page.

    Each list of token names is stored once, and the queries and keys of a layer refer to a list by its index. Maps are
    in the order of the layers.

    first      index of the first token to show
    all_notes  list to which notes about omitted parts are appended
    """
    sides: dict[tuple[Side, int], JsonObject] = {}
    notes: list[str] = []
    packed: list[bytes] = []
    tables: list[bytes] = []
    axes = []
    for axis, layers in maps.axes.items():
        rows = []
        for layer in layers:
            if not np.isfinite(layer.weights).all():
                raise UserError(f"{layer.name} has weights that are NaN or infinite: a page needs finite weights")
            shown, left_out = _fit_to_page(layer, first, TEXT_NAMES.get(axis, ("", "")))
            notes += [note for note in left_out if note not in notes]
            scale, signed, data = _quantize(np.where(shown.halted[:, None], 0, shown.weights[0]))
            packed.append(data)
            numbers = []
            for side, whole in ((shown.queries, layer.queries), (shown.keys, layer.keys)):
                if (side, len(whole)) not in sides:
                    of_text = {"first": min(first, _last_start(whole)), "total": len(whole)}
                    sides[side, len(whole)] = {
                        "tokens": side.tokens, "words": side.words, "grid": side.grid, "cover": side.cover,
                        "steps": side.steps,
                        **(of_text if side.grid is None else {"first": 0, "total": len(side)}),
                    }  # fmt: skip
                numbers.append(list(sides).index((side, len(whole))))
            rows.append({
                "name": layer.name, "number": layer.number, "step": layer.step, "heads": layer.heads,
                "queries": numbers[0], "keys": numbers[1], "scale": scale, "signed": signed,
                "shares": layer.shares, "calculation": None,
            })  # fmt: skip
            if layer.calculation is not None:
                shapes = {name: table.shape for name, table in layer.calculation.tables().items()}
                rows[-1]["calculation"] = {"scale": layer.calculation.scale, "shapes": shapes}
                tables += [table.astype("<f4").tobytes() for table in layer.calculation.tables().values()]
        axes.append({"name": axis, "layers": rows, "stepwise": axis in maps.stepwise})
    title = " ".join(maps.title.split())
    all_notes += [f"{title if len(title) <= TITLE else title[: TITLE - 1] + '…'}: {note}" for note in notes]
    return {
        "model": maps.model, "title": maps.title, "prediction": maps.prediction, "opening": dict(maps.opening),
        "told": notes, "sides": list(sides.values()), "axes": axes,
        **picture_fields(maps.picture),
        "maps": base64.b64encode(zlib.compress(b"".join(packed))).decode(),
        "calculations": base64.b64encode(zlib.compress(b"".join(tables))).decode() if tables else None,
    }  # fmt: skip


def _quantize(weights: NDArray[np.float32]) -> tuple[list[float], bool, bytes]:
    """Quantize attention maps (H, Tq, Tk) to one byte per weight.

    Return the maximum of each head, True if some weights are negative, and the bytes.
    """
    signed = bool((weights < 0).any())
    largest = np.abs(weights).max(axis=(1, 2), keepdims=True)
    roots = np.sqrt(np.abs(weights) / np.maximum(largest, np.finfo(np.float32).tiny))
    steps = np.sign(weights) * np.rint(roots * 127) + 128 if signed else np.rint(roots * 255)
    return [float(size) for size in largest.ravel()], signed, steps.astype(np.uint8).tobytes()


def _fit_to_page(layer: Layer, first: int, names: tuple[str, str]) -> tuple[Layer, list[str]]:
    """Reduce the attention map of a layer to the part that a page can show.

    Returns the reduced map with notes about omitted parts.

    names  names of the queries and of the keys for the notes, such as "target "
    """
    if layer.queries.grid is None:
        notes, parts = [], []
        for side, name in zip((layer.queries, layer.keys), names, strict=True):
            start = min(first, _last_start(side))
            parts.append(slice(start, start + SHOWN))
            if len(side) > SHOWN:
                span = f"{name}tokens {start + 1:,} to {start + SHOWN:,} of {len(side):,}"
                notes.append(f"{span} are shown; use --first N for others")
        queries, keys = parts
        shown = replace(
            layer, weights=layer.weights[:, :, queries, keys],
            queries=layer.queries.part(range(len(layer.queries))[queries]),
            keys=layer.keys.part(range(len(layer.keys))[keys]),
        )  # fmt: skip
        return shown, list(dict.fromkeys(notes))
    merged = False
    while _patches(side := layer.queries if _patches(layer.queries) > PATCHES else layer.keys) > PATCHES:
        layer, merged = _merge_patches(layer, side is layer.queries), True
    return layer, ["neighboring patches are merged, because the image has too many"] if merged else []


def _patches(side: Side) -> int:
    """Return the number of image patches among the tokens, without class tokens."""
    return 0 if side.grid is None else side.grid[0] * side.grid[1]


def _last_start(side: Side) -> int:
    return max(0, len(side) - SHOWN)


def _merge_patches(layer: Layer, of_queries: bool) -> Layer:
    """Merge 2 x 2 image patches into one; the weights are averaged over queries and added over keys."""
    side = layer.queries if of_queries else layer.keys
    assert side.grid is not None
    (rows, columns), before = side.grid, len(side) - side.grid[0] * side.grid[1]
    grid = -(-rows // 2), -(-columns // 2)
    owner = (np.arange(rows) // 2)[:, None] * grid[1] + np.arange(columns) // 2  # (rows, columns)
    merge = np.zeros((before + grid[0] * grid[1], len(side)), dtype=np.float32)
    merge[np.arange(before), np.arange(before)] = 1
    merge[before + owner.ravel(), np.arange(before, len(side))] = 1
    # If the number of rows is odd, the last merged patch extends beyond the image.
    cover = side.cover[0] * 2 * grid[0] / rows, side.cover[1] * 2 * grid[1] / columns
    made = Side.patches(grid, side.tokens[:before], cover)
    if of_queries:
        return replace(layer, weights=merge / merge.sum(1, keepdims=True) @ layer.weights, queries=made)
    return replace(layer, weights=layer.weights @ merge.T, keys=made)


def picture_fields(pixels: NDArray[np.uint8] | None) -> JsonObject:
    """Return an image as data of a page: its URL, or None, and whether it is small and shown with sharp pixels."""
    if pixels is None:
        return {"picture": None, "small": False}
    return {"picture": picture_data(pixels), "small": max(pixels.shape[:2]) <= SMALL}


def picture_data(pixels: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
