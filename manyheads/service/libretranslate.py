"""Handlers for clients of LibreTranslate: translation, languages, language detection, and settings of its web page."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import TypeVar

from starlette.requests import Request

from manyheads.service import markup, schemas
from manyheads.service.endpoint import Reply
from manyheads.service.errors import Refused
from manyheads.service.registry import Served
from manyheads.service.state import Service

T = TypeVar("T")


async def translate(service: Service, payload: schemas.TranslateRequest, request: Request) -> Reply:
    texts = [payload.q] if isinstance(payload.q, str) else payload.q
    split = [markup.of_html(text) if payload.format == "html" else markup.of_lines(text) for text in texts]
    _check_length(service, texts, sum(len(text.parts) for text in split))
    detected = None
    if payload.source == "auto":
        detected = await _detect(service, texts, request, "source")
        sources = [ranked[0].language for ranked in detected]
    else:
        sources = [payload.source] * len(texts)
    count = 1 + (payload.alternatives or 0)
    options = {"count": count, "truncate": payload.truncate}
    # index of each text -> for each part of this text, a list of its best translations
    results: dict[int, list[list[str]]] = {}
    for source in dict.fromkeys(sources):
        served = _translator(service, source, payload.target)
        indices = [i for i, other in enumerate(sources) if other == source]
        items = [part for i in indices for part in split[i].parts]
        translations = [[part] for part in items]
        if served is not None:
            translations = [[t.text for t in ranked] for ranked in await service.compute(
                request, served, served.predictor.nbest, items, "q", **options)]  # fmt: skip
        remaining = iter(translations)
        results |= {i: [next(remaining) for _ in split[i].parts] for i in indices}

    def joined(number: int, rank: int) -> str:
        return split[number].joined([ranked[min(rank, len(ranked) - 1)] for ranked in results[number]])

    single = isinstance(payload.q, str)

    def unwrap(values: list[T]) -> T | list[T]:
        return values[0] if single else values

    answer = schemas.Translated(translatedText=unwrap([joined(i, 0) for i in range(len(texts))]))
    if payload.alternatives:
        answer.alternatives = unwrap([[joined(i, rank) for rank in range(1, count)] for i in range(len(texts))])
    if detected is not None:
        answer.detectedLanguage = unwrap([ranked[0] for ranked in detected])
    return answer


def _check_length(service: Service, texts: list[str], lines: int) -> None:
    """Raise Refused if the texts of a request have too many characters or lines."""
    service.check_length(texts, "q")
    max_lines = service.limits.max_waiting
    if lines > max_lines:
        raise Refused(400, f"{lines:,} lines: expected at most {max_lines:,} in a request", field="q", code="too_long")


async def detect(service: Service, payload: schemas.DetectRequest, request: Request) -> Reply:
    (predictions,) = await _detect(service, [payload.q], request, "q")
    return predictions


async def languages(service: Service, payload: schemas.LanguagesRequest, request: Request) -> Reply:
    pairs = [served.languages for served in service.registry.all() if served.languages]
    codes = dict.fromkeys(code for pair in pairs for code in pair)
    targets = {code: list(dict.fromkeys([code, *(b for a, b in pairs if a == code)])) for code in codes}
    return [schemas.Language(code=code, name=_language_name(code), targets=targets[code]) for code in codes]


async def settings(service: Service, payload: None, request: Request) -> Reply:
    pairs = [served.languages for served in service.registry.all() if served.languages][:1]
    language = {
        side: {"code": code, "name": _language_name(code)}
        for pair in pairs for side, code in zip(("source", "target"), pair, strict=True)
    }  # fmt: skip
    needs_key = service.token is not None
    return schemas.FrontendSettings(
        apiKeys=needs_key, keyRequired=needs_key, charLimit=service.limits.characters, language=language
    )


def _translator(service: Service, source: str, target: str) -> Served | None:
    """Return the model that translates between two languages; None if the source language is the target language.

    Raises Refused if no model supports these languages.
    """
    translators = [served for served in service.registry.all() if "translate" in served.verbs]
    known = {served.languages: served for served in translators if served.languages}
    missing = "no language, because the service has no translator"
    if translators:
        missing = f"no language yet: start the service with --languages {translators[0].name}=SOURCE:TARGET"
    if source == target and any(source in pair for pair in known):
        return None
    for field, value, codes in (
        ("source", source, {a for a, _ in known}), ("target", target, {b for a, b in known if a == source})
    ):  # fmt: skip
        if value not in codes:
            expected = ", ".join(sorted(codes)) or missing
            raise Refused(400, f"{value[:40]} is not supported: expected {expected}", field=field, code="language")
    return known[source, target]


async def _detect(
    service: Service, texts: list[str], request: Request, field: str
) -> list[list[schemas.Detected]]:  # fmt: skip
    if service.detector is None:
        hint = "give the source language" if field == "source" else "start the service with --detect"
        raise Refused(400, f"the service has no model for language detection: {hint}", field=field, code="no_detector")
    served = service.registry.of(service.detector, "classify")
    for text in texts:
        if not text.strip():
            raise Refused(400, "is blank: give a text to detect its language", field="q")
    predictions = await service.compute(request, served, served.predictor.predictions, texts, "q", top=3, truncate=True)
    return [
        [schemas.Detected(confidence=round(100 * label.probability, 1), language=label.label) for label in ranked]
        for ranked in predictions
    ]


@cache
def _names() -> list[dict[str, str]]:
    """Return three dictionaries with the English names of all languages, scripts and territories, by their codes."""
    found: list[dict[str, str]] = json.loads((files("manyheads.service") / "language_names.json").read_text("utf-8"))
    return found


def _language_name(code: str) -> str:
    """Return the English name of a language, or the code itself if Unicode has no name for it."""
    languages, scripts, territories = _names()
    language, *parts = re.split("[-_]", code)
    details = [scripts.get(part.title()) or territories.get(part.upper()) for part in parts]
    name = languages.get(language.lower())
    if name is None or None in details:
        return code
    return f"{name} ({', '.join(map(str, details))})" if details else name
