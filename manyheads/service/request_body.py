"""What a client sends, within bounds of size and time, and the wait for what it asked for, while it stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import parse_qs

from pydantic import ValidationError
from starlette.requests import Request

from manyheads.service.errors import Refused
from manyheads.service.schemas import Body, StreamOptions

T = TypeVar("T")
B = TypeVar("B", bound=Body)
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MOST_FIELDS = 300  # of a form


class Gone(Exception):
    """The client has left: nobody waits for an answer."""


async def body_of(request: Request, most: int, seconds: float, hint: str = "") -> bytes:
    """The body of a request, refused as soon as it is known to be too large (`hint`: what helps) or too slow."""
    large = Refused(413, f"the body is larger than {most:,} bytes{hint}", code="too_large")
    stated = request.headers.get("content-length", "0")
    if not stated.isdecimal() or int(stated[:20]) > most:
        raise large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Gone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise large
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        slow = f"the body did not arrive within {seconds:g} seconds"
        raise Refused(408, slow, code="timeout") from None


def parsed(kind: type[B], body: bytes, content_type: str, *, form: bool = False) -> B:
    """What a body says. `form`: it may be a form, too."""
    mime = content_type.partition(";")[0].strip().lower()
    try:
        if form and mime == FORM:
            fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
            values: dict[str, Any] = {name: texts[0] if len(texts) == 1 else texts for name, texts in fields.items()}
            return kind.model_validate(values, strict=False)
        if mime != JSON:
            wanted = f"{JSON} or {FORM}" if form else JSON
            raise Refused(415, f"the content type is {mime[:80] or 'not stated'!r}: expected {wanted}")
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise fault(error) from None
    except ValueError as error:
        raise Refused(400, f"the form cannot be read: {error}", code="invalid_form") from None


def fault(error: ValidationError) -> Refused:
    """The first fault, by the name of the field; of a union, that of the alternative that came furthest."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    if faults[0]["type"] == "json_invalid":
        return Refused(400, f"the body is no JSON: {faults[0]['msg']}", code="invalid_json")
    first = faults[0]["loc"][:1]
    worst = max((detail for detail in faults if detail["loc"][:1] == first), key=lambda detail: len(detail["loc"]))
    inner = [part for part in worst["loc"][1:] if isinstance(part, int) or part in StreamOptions.model_fields]
    field = ".".join(map(str, [*first, *inner]))  # without pydantic's names for the alternatives of a union
    code = "unknown_field" if worst["type"] == "extra_forbidden" else "invalid_value"
    return Refused(400, worst["msg"], field=field[:200] or None, code=code)


async def while_there(request: Request, work: Awaitable[T], seconds: float) -> T:
    """What comes of the work, which is cancelled when the client leaves or it takes too long."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request.receive))
    try:
        done, _ = await asyncio.wait({task, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        if leaving in done:
            raise Gone
        raise Refused(504, f"no answer within {seconds:g} seconds", code="timeout")
    finally:
        task.cancel()
        leaving.cancel()


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
