"""Handlers for the other verbs, in plain JSON: texts in the request, and results in the same order."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from manyheads.errors import UserError
from manyheads.service import schemas
from manyheads.service.computing import framed
from manyheads.service.errors import Refused
from manyheads.service.registry import Served
from manyheads.service.request_body import while_there
from manyheads.service.state import Service


async def nbest(service: Service, asked: schemas.NBestRequest, request: Request) -> Any:
    served = service.registry.of(asked.model, "translate")
    if asked.count > asked.beam:
        raise Refused(400, f"found {asked.count}: expected at most the beam, {asked.beam}", field="count")
    how = {"count": asked.count, "beam": asked.beam, "alpha": asked.alpha, "truncate": asked.truncate}
    translations = await service.computed(request, served, "nbest", asked.texts, "texts", **how)
    return schemas.Results(
        model=served.name, results=[[asdict(translation) for translation in ranked] for ranked in translations]
    )


async def classify(service: Service, asked: schemas.ClassifyRequest, request: Request) -> Any:
    served = service.registry.of(asked.model, "classify")
    _check_fields(served, asked)
    how: dict[str, Any] = {"top": asked.top}
    items: list[Any]
    if asked.images is not None:
        verb, field = "images", "images"
        served, items = await _seen(service, served, asked, request)
    else:
        verb, field, items = "classify", "texts", asked.texts or []
        how["truncate"] = asked.truncate
        if asked.pairs is not None:
            if len(asked.pairs) != len(items):
                raise Refused(
                    400,
                    f"found {len(asked.pairs)} pairs for {len(items)} texts: expected one for each text",
                    field="pairs",
                )
            verb, items = "pairs", list(zip(items, asked.pairs, strict=True))
    predictions = await service.computed(request, served, verb, items, field, **how)
    return schemas.Results(model=served.name, results=[[asdict(label) for label in ranked] for ranked in predictions])


def _check_fields(served: Served, asked: schemas.ClassifyRequest) -> None:
    """Raise Refused if a field is missing, or if the model does not read it."""
    predictor, both = served.predictor, ["texts", "pairs"]
    if predictor.reads == "images":
        reads, needs, takes = "images", ["images"], ["images"]
    elif predictor.needs_pairs:
        reads, needs, takes = "pairs", both, both
    elif predictor.takes_pairs:
        reads, needs, takes = "texts", ["texts"], both
    else:
        reads, needs, takes = "single texts", ["texts"], ["texts"]
    for field in needs:
        if getattr(asked, field) is None:
            raise Refused(400, f"{served.name} reads {reads}: expected a list of them", field=field, code="missing")
    for field in [*both, "images"]:
        if field not in takes and getattr(asked, field) is not None:
            raise Refused(400, f"{served.name} reads {reads}: leave this field out", field=field)


async def _seen(
    service: Service, served: Served, asked: schemas.ClassifyRequest, request: Request
) -> tuple[Served, list[NDArray[np.uint8]]]:
    """Return the model and the decoded images in the size of its input.

    The images are decoded in a separate queue, because all models would wait otherwise. If a new version of the model
    is loaded meanwhile, they are decoded again for it.
    """
    files = [bytes_of(image, f"images.{i}") for i, image in enumerate(asked.images or [])]
    while True:
        future = service.images.submit(served, framed(served.predictor), files, "images")
        seen = await while_there(request, asyncio.wrap_future(future), service.limits.deadline)
        if served is (current := service.registry.of(asked.model, "classify")):
            return served, seen
        served = current


def bytes_of(image: str, field: str) -> bytes:
    """Return the bytes of an image file from base64. Raises Refused if the text is not base64."""
    try:
        return base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(400, "expected an image file encoded in base64", field=field) from None


async def tag(service: Service, asked: schemas.TagRequest, request: Request) -> Any:
    served = service.registry.of(asked.model, "tag")
    tagged = await service.computed(request, served, "tag", asked.texts, "texts")
    results = [
        {"words": [word._asdict() for word in text.words], "entities": [entity._asdict() for entity in text.entities]}
        for text in tagged
    ]
    return schemas.Results(model=served.name, results=results)


async def fill(service: Service, asked: schemas.FillRequest, request: Request) -> Any:
    served = service.registry.of(asked.model, "fill")
    characters = sum(map(len, asked.texts))
    if asked.top * characters > schemas.MOST_FILLED:
        fault = (
            f"top is {asked.top:,} for {characters:,} characters: expected a product of at most {schemas.MOST_FILLED:,}"
        )
        raise Refused(400, fault, field="top", code="too_long")
    predictions = await service.computed(request, served, "fill", asked.texts, "texts", top=asked.top)
    return schemas.Results(
        model=served.name, results=[[prediction._asdict() for prediction in ranked] for ranked in predictions]
    )


async def answer(service: Service, asked: schemas.AnswerRequest, request: Request) -> Any:
    served = service.registry.of(asked.model, "answer")
    how = {"nbest": asked.nbest, "max_answer": asked.max_answer, "null_threshold": asked.null_threshold}
    try:
        served.predictor.check_question(asked.question)
    except UserError as error:
        raise Refused(400, str(error), field="question", code="invalid_value") from None
    pair = (asked.question, asked.context)
    (predictions,) = await service.computed(request, served, "answer", [pair], "context", **how)
    return schemas.Results(model=served.name, results=[prediction._asdict() for prediction in predictions])
