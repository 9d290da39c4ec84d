"""Handler for the attention maps of one input, in the format of the page of `manyheads attend`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import torch
from starlette.requests import Request

from manyheads.analysis.maps import AttentionMaps
from manyheads.analysis.maps.page import SHOWN, panel
from manyheads.core.tap import tapped
from manyheads.data.images.checking import open_image
from manyheads.errors import UserError
from manyheads.service import schemas
from manyheads.service.computing import MOST_PIXELS
from manyheads.service.errors import Refused
from manyheads.service.registry import Served
from manyheads.service.request_body import while_there
from manyheads.service.state import Service
from manyheads.service.verbs import bytes_of
from manyheads.tasks.tokenized_text import tokenized_ids

MOST_WEIGHTS = 2**23  # maximum number of weights in the maps of an input, one byte each in the response
MOST_NEXT = 5


async def attend(service: Service, asked: schemas.AttendRequest, request: Request) -> Any:
    """Return the attention maps of one input.

    Each input is a separate batch, because maps need much memory and other requests should not wait for several of
    them.
    """
    served = service.registry.of(asked.model, None)
    if not served.attends:
        raise Refused(400, f"{served.name} has no attention heads to show", field="model", code="wrong_model")
    arguments = _arguments(served, asked)
    field = next(iter(arguments))

    def run(items: list[dict[str, Any]]) -> list[schemas.Attended]:
        return [_attended(served, item) for item in items]

    future = service.looks.submit(object(), run, [arguments], field)
    (answer,) = await while_there(request, asyncio.wrap_future(future), service.limits.deadline)
    return answer


def _arguments(served: Served, asked: schemas.AttendRequest) -> dict[str, Any]:
    """Return the arguments for `attend`, with `text` or `image` first.

    Raises Refused for fields that the model does not accept.
    """
    predictor, pairs = served.predictor, getattr(served.predictor, "reads_pairs", False)
    takes = {
        "image": getattr(predictor, "reads", "texts") == "images", "pair": pairs,
        "target": hasattr(predictor, "translate"),
    }  # fmt: skip
    takes["text"] = not takes["image"]
    first = "image" if takes["image"] else "text"
    given = {name: value for name in (first, *takes) if (value := getattr(asked, name)) is not None}
    for name in given:
        if not takes[name]:
            raise Refused(400, f"{served.name} does not accept this field", field=name, code="invalid_value")
    if first not in given:
        raise Refused(400, f"{served.name} reads {first}s: expected a value", field=first, code="missing")
    if getattr(predictor, "pairs_only", "") and "pair" not in given:
        raise Refused(400, f"{served.name} reads a text with its pair: expected both", field="pair", code="missing")
    if takes["image"]:
        given["image"] = bytes_of(given["image"], "image")
    return given


def _attended(served: Served, given: dict[str, Any]) -> schemas.Attended:
    """Compute the maps in the worker thread.

    Raises UserError for an input that the model cannot read, or that is too long.
    """
    predictor, following = served.predictor, None
    if "image" in given:
        maps = predictor.attend(open_image(given["image"], MOST_PIXELS))
    else:
        _check_length(predictor, given)
        maps = predictor.attend(**given)
        if hasattr(predictor, "generate"):
            following = _next(predictor, given["text"])
    assert isinstance(maps, AttentionMaps)
    weights = sum(layer.weights.size for layers in maps.axes.values() for layer in layers)
    if weights > MOST_WEIGHTS:
        raise UserError(f"has {weights:,} weights in its maps: expected at most {MOST_WEIGHTS:,}")
    maps_panel = panel(replace(maps, model=served.name), 0, [])
    return schemas.Attended(model=served.name, panel=maps_panel, next=following)


def _check_length(predictor: Any, given: dict[str, Any]) -> None:
    """Check the length before the computation, because the size of the maps is quadratic in the length."""
    tokens = len(predictor.tokenizer.encode(given["text"] + given.get("pair", "")).ids)
    if "target" in given:
        tokens = max(tokens, len(predictor.target_tokenizer.encode(given["target"]).ids))
    heads: int = sum(module.heads for module in tapped(predictor.model).values())  # type: ignore[misc]
    most = min(SHOWN, int((MOST_WEIGHTS / heads) ** 0.5))
    if tokens > most:
        raise UserError(f"has {tokens:,} tokens: expected at most {most:,} for the attention maps of this model")


def _next(predictor: Any, text: str) -> list[schemas.Next]:
    """Return the likeliest next tokens of a text."""
    ids = torch.tensor(predictor.encode([text]), device=predictor.compute.device)
    with predictor.compute.autocast():
        chances = predictor.model.project(predictor.model.hidden(ids)[:, -1])[0].float().softmax(-1)
    values, tokens = chances.topk(min(MOST_NEXT, len(chances)))
    return [
        schemas.Next(token=tokenized_ids(predictor.tokenizer, [token]).side.tokens[0], probability=value)
        for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
    ]
