"""The other verbs, in plain JSON: texts in, results in their order."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from manyheads.data.text_faults import ItemError
from manyheads.service import schemas
from manyheads.service.batching import Run
from manyheads.service.errors import Refused

if TYPE_CHECKING:
    from manyheads.service.app import Service

MOST_PIXELS = 16_000_000  # of an image


def run(predictor: Any, verb: str, **how: Any) -> Run:
    """What computes a verb for many items at once."""

    def answers(pairs: list[tuple[str, str]]) -> Sequence[Any]:
        for index, pair in enumerate(pairs):
            try:
                predictor.check(*pair)
            except ValueError as error:
                raise ItemError(index, str(error)) from None
        return predictor.answers(pairs, **how)

    def pairs(items: list[tuple[str, str]]) -> Sequence[Any]:
        return predictor.classify([a for a, _ in items], [b for _, b in items], **how)

    def images(items: list[bytes]) -> Sequence[Any]:
        from manyheads.data.images.checking import open_image

        arrays = []  # one image at a time is held at its full size
        for index, item in enumerate(items):
            try:
                arrays.append(predictor.preprocessing.array(open_image(item, MOST_PIXELS)))
            except ValueError as error:
                raise ItemError(index, str(error)) from None
        return predictor.classify_arrays(arrays, **how)

    special: dict[str, Run] = {"answer": answers, "pairs": pairs, "images": images}
    return special.get(verb) or (lambda items: getattr(predictor, verb)(items, **how))


async def nbest(service: Service, asked: schemas.NBestRequest, request: Request) -> Any:
    served = service.registry.of(asked.model, "translate")
    if asked.count > asked.beam:
        raise Refused(400, f"is {asked.count}: expected at most the beam, {asked.beam}", field="count")
    how = {"count": asked.count, "beam": asked.beam, "alpha": asked.alpha, "truncate": asked.truncate}
    translations = await service.computed(request, served, "nbest", asked.texts, "texts", **how)
    return schemas.Results(
        model=served.name, results=[[asdict(translation) for translation in ranked] for ranked in translations]
    )


async def classify(service: Service, asked: schemas.ClassifyRequest, request: Request) -> Any:
    served = service.registry.of(asked.model, "classify")
    reads = served.predictor.reads
    how: dict[str, Any] = {"top": asked.top}
    verb, field, items = "classify", reads, getattr(asked, reads)
    if items is None:
        raise Refused(400, f"{served.name} reads {reads}: expected a list of them", field=reads, code="missing")
    other = "images" if reads == "texts" else "texts"
    if getattr(asked, other) is not None or (reads == "images" and asked.pairs is not None):
        raise Refused(400, f"{served.name} reads {reads}: expected none", field=other)
    if reads == "images":
        verb, items = "images", [bytes_of(image, f"images.{i}") for i, image in enumerate(asked.images or [])]
    else:
        how["truncate"] = asked.truncate
        if asked.pairs is not None:
            if len(asked.pairs) != len(items):
                raise Refused(400, f"{len(asked.pairs)} for {len(items)} texts: expected one for each", field="pairs")
            verb, items = "pairs", list(zip(items, asked.pairs, strict=True))
    predictions = await service.computed(request, served, verb, items, field, **how)
    return schemas.Results(model=served.name, results=[[asdict(label) for label in ranked] for ranked in predictions])


def bytes_of(image: str, field: str) -> bytes:
    """Of an image's file. Raises Refused for what is no base64."""
    try:
        return base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(400, "expected the bytes of an image in base64", field=field) from None


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
    predictions = await service.computed(request, served, "fill", asked.texts, "texts", top=asked.top)
    return schemas.Results(
        model=served.name, results=[[prediction._asdict() for prediction in ranked] for ranked in predictions]
    )


async def answer(service: Service, asked: schemas.AnswerRequest, request: Request) -> Any:
    served = service.registry.of(asked.model, "answer")
    how = {"nbest": asked.nbest, "max_answer": asked.max_answer, "null_threshold": asked.null_threshold}
    try:
        served.predictor.check_question(asked.question)
    except ValueError as error:
        raise Refused(400, str(error), field="question", code="invalid_value") from None
    pair = (asked.question, asked.context)
    (predictions,) = await service.computed(request, served, "answer", [pair], "context", **how)
    return schemas.Results(model=served.name, results=[prediction._asdict() for prediction in predictions])
