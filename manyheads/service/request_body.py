"""Reading and validation of request bodies, with limits on size and time.

If a client disconnects, the computation for the request is canceled.
"""

from __future__ import annotations

import asyncio
import base64
import email
import email.policy
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import Receive

from manyheads.errors import nearest
from manyheads.files import JsonObject
from manyheads.service.errors import Refused
from manyheads.service.schemas import Body, StreamOptions

T = TypeVar("T")
B = TypeVar("B", bound=Body)
JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
MAX_FIELDS = 300  # maximum number of fields in an HTML form


class ClientDisconnected(Exception):
    """Exception for a client that has disconnected, so that no response is needed."""


async def read_body(request: Request, max_bytes: int, seconds: float, hint: str = "") -> bytes:
    """Return the body of a request. Raises Refused as soon as the body is too large or too slow.

    hint  advice for the error message about a body that is too large
    """
    too_large = Refused(413, f"the body is larger than {max_bytes:,} bytes{hint}", code="too_large")
    stated = request.headers.get("content-length", "0")
    if not stated.isdecimal() or int(stated[:20]) > max_bytes:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > max_bytes:
                    raise too_large
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        reason = f"the body did not arrive within {seconds:g} seconds"
        raise Refused(408, reason, code="timeout") from None


def parse_body(
    schema: type[B], body: bytes, content_type: str, *, form: bool = False, images: bool = False,
    query: Mapping[str, str] | None = None,
) -> B:  # fmt: skip
    """Parse and validate a request body.

    schema        schema of the request
    content_type  value of the header Content-Type
    form          True if an HTML form is allowed in addition to JSON
    images        True if an image file is allowed, with the other fields in `query`, or a multipart form with image
                  files
    query         query parameters of the URL

    Raises Refused if the body is invalid.
    """
    mime = content_type.partition(";")[0].strip().lower()
    try:
        if form and mime == FORM:
            fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
            values: JsonObject = {name: texts[0] if len(texts) == 1 else texts for name, texts in fields.items()}
            return schema.model_validate(values, strict=False)
        if images and (mime == MULTIPART or mime.startswith("image/")):
            values = (
                _multipart(content_type, body) if mime == MULTIPART else {**(query or {}), "images": [_base64(body)]}
            )
            return schema.model_validate(values, strict=False)
        if mime != JSON:
            expected = f"{JSON} or {FORM}" if form else f"{JSON}, image/* or {MULTIPART}" if images else JSON
            raise Refused(415, f"the content type is {mime[:80] or 'not stated'!r}: expected {expected}")
        return schema.model_validate_json(body)
    except ValidationError as error:
        raise validation_error(error, schema.model_fields) from None
    except ValueError as error:
        raise Refused(400, f"failed to parse the form: {error}", code="invalid_form") from None


def _multipart(content_type: str, body: bytes) -> JsonObject:
    """Return the fields of a multipart form. Files become the field `images`, as a list in base64."""
    head = b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n"
    message: Any = email.message_from_bytes(head + body, policy=email.policy.HTTP)
    if not message.is_multipart() or message.defects:
        raise ValueError("expected parts between the boundaries that the content type names")
    fields: JsonObject = {}
    for part in message.get_payload():
        content = part.get_payload(decode=True) or b""
        if part.get_filename() is None:
            fields[str(part.get_param("name", "", "content-disposition"))] = content.decode()
        else:
            fields.setdefault("images", []).append(_base64(content))
    return fields


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def validation_error(error: ValidationError, known: Iterable[str]) -> Refused:
    """Return the HTTP error for the first validation error of a request, with the name of the invalid field.

    If the field allows alternative types, the error describes the type that matches the request best. This is a type
    with a value out of its limits, otherwise the type with the longest valid beginning.

    known  names of all fields. The error for an unknown field suggests the most similar name
    """
    details = error.errors(include_url=False, include_context=False, include_input=False)
    if details[0]["type"] == "json_invalid":
        return Refused(400, f"failed to parse the body as JSON: {details[0]['msg']}", code="invalid_json")
    first = details[0]["loc"][:1]
    of_field = [detail for detail in details if detail["loc"][:1] == first]
    mismatched = {detail["loc"][1:2] for detail in of_field if detail["type"].endswith("_type")}
    worst = max(of_field, key=lambda detail: _match(detail["loc"], detail["loc"][1:2] not in mismatched))
    path = [part for part in worst["loc"][1:] if isinstance(part, int) or part in StreamOptions.model_fields]
    field = ".".join(map(str, [*first, *path]))  # field path without the names that pydantic adds for alternative types
    if worst["type"] == "extra_forbidden":
        names = known if len(worst["loc"]) == 1 else StreamOptions.model_fields
        message = f"unknown field; {nearest(str(worst['loc'][-1])[:200], names)}"
        return Refused(400, message, field=field[:200] or None, code="unknown_field")
    return Refused(400, worst["msg"].removeprefix("Value error, "), field=field[:200] or None, code="invalid_value")


def _match(place: tuple[int | str, ...], fits: bool) -> tuple[bool, int, int]:
    """Return a sort key for the validation errors of alternative types: larger if the type matches the request better.

    place  location of the error: the field, the name of the type if there are alternatives, and indices of items
    fits   True if the value has this type, but is out of its limits
    """
    valid_items = place[2] if len(place) > 2 and isinstance(place[1], str) and isinstance(place[2], int) else 0
    return fits, len(place), valid_items


async def while_connected(request: Request, work: Awaitable[T], seconds: float) -> T:
    """Wait for the result of a computation. It is canceled if the client disconnects or the time limit is reached."""
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_wait_for_disconnect(request.receive))
    try:
        done, _ = await asyncio.wait({task, disconnected}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        if disconnected in done:
            raise ClientDisconnected
        raise Refused(504, f"no answer within {seconds:g} seconds", code="timeout")
    finally:
        task.cancel()
        disconnected.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
