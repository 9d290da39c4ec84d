"""Handlers that return the attention maps of one input.

The responses have the data format of the HTML pages that the command `manyheads attend` writes.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import torch
from starlette.requests import Request

from manyheads.analysis.maps import AttentionMaps
from manyheads.analysis.maps.page import SHOWN, panel
from manyheads.core.recording import tapped
from manyheads.data.images.checking import open_image
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.service import schemas
from manyheads.service.computing import MAX_PIXELS
from manyheads.service.endpoint import Reply
from manyheads.service.errors import Refused
from manyheads.service.registry import Served
from manyheads.service.request_body import while_connected
from manyheads.service.state import Service
from manyheads.service.verbs import decode_base64
from manyheads.tasks.loading import LoadedModel
from manyheads.tasks.tokenized_text import tokenized_ids

MAX_WEIGHTS = 2**23  # maximum number of attention weights in a response, where each weight takes one byte
MAX_NEXT = 5  # maximum number of likeliest next tokens in a response


async def attend(service: Service, payload: schemas.AttendRequest, request: Request) -> Reply:
    """Return the attention maps of one input.

    Each input is computed alone, not in a batch: attention maps need much memory, and other requests should not have to
    wait for several inputs.
    """
    served = service.registry.of(payload.model, None)
    if not served.attends:
        raise Refused(400, f"{served.name} has no attention heads to show", field="model", code="wrong_model")
    arguments = _arguments(served, payload)
    field = next(iter(arguments))

    def run(items: list[JsonObject]) -> list[schemas.Attended]:
        return [_compute_maps(served, item) for item in items]

    future = service.attention_queue.submit(object(), run, [arguments], field)
    (answer,) = await while_connected(request, asyncio.wrap_future(future), service.limits.deadline)
    return answer


def _arguments(served: Served, payload: schemas.AttendRequest) -> JsonObject:
    """Return the keyword arguments for the model's method `attend`. The first one is the input, `text` or `image`.

    Raises Refused for fields of the request that the model does not accept.
    """
    predictor = served.predictor
    translates = "translate" in predictor.verbs
    accepts = {"image": predictor.reads == "images", "pair": predictor.reads_pairs, "target": translates}
    accepts["text"] = not accepts["image"]
    first = "image" if accepts["image"] else "text"
    given = {name: value for name, value in payload if value is not None}
    arguments = {name: given[name] for name in (first, *accepts) if name in given}
    for name in arguments:
        if not accepts[name]:
            raise Refused(400, f"{served.name} does not accept this field", field=name, code="invalid_value")
    if first not in arguments:
        raise Refused(400, f"{served.name} reads {first}s: expected a value", field=first, code="missing")
    if predictor.pairs_only and "pair" not in arguments:
        raise Refused(400, f"{served.name} reads a text with its pair: expected both", field="pair", code="missing")
    if accepts["image"]:
        arguments["image"] = decode_base64(arguments["image"], "image")
    return arguments


def _compute_maps(served: Served, arguments: JsonObject) -> schemas.Attended:
    """Compute the attention maps in the worker thread of the model.

    Raises UserError for an input that the model cannot read, or that is too long.
    """
    predictor, next_tokens = served.predictor, None
    if "image" in arguments:
        axis = "cross" if "detect" in predictor.verbs else None  # where objects look; the other maps may be very large
        maps = predictor.attend(open_image(arguments["image"], MAX_PIXELS), axis=axis)
    else:
        _check_length(predictor, arguments)
        maps = predictor.attend(**arguments)
        if "generate" in predictor.verbs:
            next_tokens = _next(predictor, arguments["text"])
    assert isinstance(maps, AttentionMaps)
    weights = sum(layer.weights.size for layers in maps.axes.values() for layer in layers)
    if weights > MAX_WEIGHTS:
        raise UserError(f"has {weights:,} weights in its maps: expected at most {MAX_WEIGHTS:,}")
    maps_panel = panel(replace(maps, model=served.name), 0, [])
    return schemas.Attended(model=served.name, panel=maps_panel, next=next_tokens)


def _check_length(predictor: LoadedModel, arguments: JsonObject) -> None:
    """Raise UserError if an input is too long for attention maps, whose size is quadratic in its number of tokens."""
    tokens = len(predictor.tokenizer.encode(arguments["text"] + arguments.get("pair", "")).ids)
    if "target" in arguments:
        tokens = max(tokens, len(predictor.target_tokenizer.encode(arguments["target"]).ids))
    heads: int = sum(module.heads for module in tapped(predictor.model).values())  # type: ignore[misc]
    max_tokens = min(SHOWN, int((MAX_WEIGHTS / heads) ** 0.5))
    if tokens > max_tokens:
        raise UserError(f"has {tokens:,} tokens: expected at most {max_tokens:,} for the attention maps of this model")


def _next(predictor: LoadedModel, text: str) -> list[schemas.Next]:
    """Return the likeliest next tokens after a text, as predicted by a language model."""
    ids = torch.tensor(predictor.encode([text]), device=predictor.compute.device)
    with predictor.compute.autocast():
        probabilities = predictor.model.project(predictor.model.hidden(ids)[:, -1])[0].float().softmax(-1)
    values, tokens = probabilities.topk(min(MAX_NEXT, len(probabilities)))
    return [
        schemas.Next(token=tokenized_ids(predictor.tokenizer, [token]).side.tokens[0], probability=value)
        for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
    ]
