"""Handlers of routes for commands such as classify or fill, in plain JSON.

The results in a response have the order of the texts in the request.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from dataclasses import asdict

from starlette.requests import Request

from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.service import schemas, vector_schemas
from manyheads.service.batching import Items
from manyheads.service.computing import Decoded, image_decoder
from manyheads.service.endpoint import Reply
from manyheads.service.errors import Refused
from manyheads.service.registry import Served
from manyheads.service.request_body import while_connected
from manyheads.service.state import Service
from manyheads.tasks.targets import Label


async def nbest(service: Service, payload: schemas.NBestRequest, request: Request) -> Reply:
    served = service.registry.of(payload.model, "translate")
    if payload.beam is not None and payload.count > payload.beam:
        raise Refused(400, f"found {payload.count}: expected at most the beam, {payload.beam}", field="count")
    options = {"count": payload.count, "beam": payload.beam, "alpha": payload.alpha, "truncate": payload.truncate}
    translations = await service.compute(request, served, served.predictor.nbest, payload.texts, "texts", **options)
    return schemas.Results(
        model=served.name, results=[[asdict(translation) for translation in ranked] for ranked in translations]
    )


async def classify(service: Service, payload: schemas.ClassifyRequest, request: Request) -> Reply:
    served = service.registry.of(payload.model, "classify")
    _check_fields(served, payload)
    options: JsonObject = {"top": payload.top, "threshold": payload.threshold}
    items: Items
    if payload.images is not None:
        field = "images"
        served, items = await decode_images(service, served, "classify", payload.images, "images", request)
    else:
        field, items = "texts", payload.texts or []
        options["truncate"] = payload.truncate
        if payload.pairs is not None:
            if len(payload.pairs) != len(items):
                raise Refused(
                    400, f"found {len(payload.pairs)} for {len(items)} texts: expected one each", field="pairs"
                )
            items = list(zip(items, payload.pairs, strict=True))
    predictor = served.predictor
    method = predictor.predictions if payload.images is None else predictor.classify_arrays
    predictions = await service.compute(request, served, method, items, field, **options)
    return schemas.Results(model=served.name, results=list(map(_prediction, predictions)))


def _prediction(prediction: float | list[Label]) -> object:
    if isinstance(prediction, float):
        return {"value": None if math.isnan(prediction) else prediction}
    return [asdict(label) for label in prediction]


def _check_fields(served: Served, payload: schemas.ClassifyRequest) -> None:
    """Raise Refused if a field that the model requires is missing, or if the model does not use a field."""
    predictor, both = served.predictor, ["texts", "pairs"]
    if predictor.reads == "images":
        reads, needs, takes = "images", ["images"], ["images"]
    elif predictor.needs_pairs:
        reads, needs, takes = "pairs", both, both
    elif predictor.takes_pairs:
        reads, needs, takes = "texts", ["texts"], both
    else:
        reads, needs, takes = "single texts", ["texts"], ["texts"]
    expected = "two lists of equal length, texts and pairs (the second texts)" if needs == both else "a list of them"
    given = {field for field, value in payload if value is not None}
    for field in needs:
        if field not in given:
            raise Refused(400, f"{served.name} reads {reads}: expected {expected}", field=field, code="missing")
    for field in [*both, "images"]:
        if field in given and field not in takes:
            raise Refused(400, f"{served.name} reads {reads}: leave this field out", field=field)


async def decode_images(
    service: Service, served: Served, verb: str, images: list[str], field: str, request: Request
) -> tuple[Served, list[Decoded]]:
    """Return a model, and the images of a request (files in base64) as pixels in the model's input size.

    The images are decoded in a separate queue, because all models would wait if an image were decoded in a model's
    queue. If the model is reloaded meanwhile, the images are decoded again for the new version.
    """
    if len(images) > schemas.MAX_IMAGES:
        raise Refused(400, f"found {len(images)} images: expected at most {schemas.MAX_IMAGES}", field=field)
    files = [decode_base64(image, f"{field}.{i}") for i, image in enumerate(images)]
    while True:
        future = service.image_queue.submit(served, image_decoder(served.predictor), files, field)
        pixels = await while_connected(request, asyncio.wrap_future(future), service.limits.deadline)
        if served is (current := service.registry.of(served.name, verb)):
            return served, pixels
        served = current


def decode_base64(image: str, field: str) -> bytes:
    """Return the bytes of an image file from base64 or a data URL. Raises Refused if the text is neither."""
    try:
        return base64.b64decode(image.partition(";base64,")[2] or image, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(400, "expected an image file encoded in base64", field=field) from None


async def objects(service: Service, payload: schemas.ObjectsRequest, request: Request) -> Reply:
    served = service.registry.of(payload.model, "detect")
    served, items = await decode_images(service, served, "detect", payload.images, "images", request)
    method = served.predictor.detect_arrays
    found = await service.compute(request, served, method, items, "images", threshold=payload.threshold)
    return schemas.Results(model=served.name, results=[[each._asdict() for each in image] for image in found])


async def tag(service: Service, payload: schemas.TagRequest, request: Request) -> Reply:
    served = service.registry.of(payload.model, "tag")
    tagged = await service.compute(request, served, served.predictor.tag, payload.texts, "texts")
    results = [
        {"words": [word._asdict() for word in text.words], "entities": [entity._asdict() for entity in text.entities]}
        for text in tagged
    ]
    return schemas.Results(model=served.name, results=results)


async def fill(service: Service, payload: schemas.FillRequest, request: Request) -> Reply:
    served = service.registry.of(payload.model, "fill")
    characters = sum(map(len, payload.texts))
    if payload.top * characters > schemas.MAX_FILLED:
        fault = f"top is {payload.top:,} for {characters:,} characters: expected a product up to {schemas.MAX_FILLED:,}"
        raise Refused(400, fault, field="top", code="too_long")
    predictions = await service.compute(request, served, served.predictor.fill, payload.texts, "texts", top=payload.top)
    return schemas.Results(
        model=served.name, results=[[prediction._asdict() for prediction in ranked] for ranked in predictions]
    )


async def rerank(service: Service, payload: vector_schemas.RerankRequest, request: Request) -> Reply:
    served = service.registry.of(payload.model, "rerank")
    texts = [document if isinstance(document, str) else document.text for document in payload.documents]
    pairs: Items = [(payload.query, text) for text in texts]
    service.check_length(pairs, "documents")
    method, parts = served.predictor.relevance, service.split(pairs, "documents")
    scores = await service.compute_parts(request, served, method, parts, "documents", truncate=payload.truncate)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[: payload.top_n]
    results = [
        vector_schemas.RankedDocument(
            index=index, relevance_score=scores[index],
            document=vector_schemas.Document(text=texts[index]) if payload.return_documents else None,
        )
        for index in order
    ]  # fmt: skip
    return vector_schemas.Ranking(model=served.name, results=results)


async def answer(service: Service, payload: schemas.AnswerRequest, request: Request) -> Reply:
    served = service.registry.of(payload.model, "answer")
    options = {"nbest": payload.nbest, "max_answer": payload.max_answer, "null_threshold": payload.null_threshold}
    single = isinstance(payload.question, str)
    questions = [payload.question] if isinstance(payload.question, str) else payload.question
    contexts = [payload.context] * len(questions) if isinstance(payload.context, str) else payload.context
    if len(contexts) != len(questions):
        fault = f"found {len(contexts)} for {len(questions)} questions: expected one for each, or one string for all"
        raise Refused(400, fault, field="context")
    for index, question in enumerate(questions):
        try:
            served.predictor.check_question(question)
        except UserError as error:
            field = "question" if single else f"question.{index}"
            raise Refused(400, str(error), field=field, code="invalid_value") from None
    pairs = list(zip(questions, contexts, strict=True))
    predictions = await service.compute(request, served, served.predictor.answer, pairs, "context", **options)
    results = [[found._asdict() for found in ranked] for ranked in predictions]
    return schemas.Results(model=served.name, results=results[0] if single else results)
