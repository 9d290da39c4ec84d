"""Route of the HTTP service: its handler function, and the schemas of its request and response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from manyheads.service import schemas
from manyheads.service.request_body import JSON
from manyheads.service.state import Service

Handler = Callable[[Service, Any, Request], Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """Route of the HTTP service, with its handler function.

    request_schema   schema of the request; None: the request has no body
    response_schema  schema of the response
    many             true if the response is a list of objects with the schema `response_schema`
    form             true if clients may send the request as an HTML form
    images           true if clients may send image files as the body, or in a multipart form
    mimes            media types of the response
    """

    method: str
    path: str
    handler: Handler
    summary: str
    request_schema: type[schemas.Body] | None = None
    response_schema: type[schemas.Answer] | None = None
    many: bool = False
    form: bool = False
    images: bool = False
    mimes: tuple[str, ...] = (JSON,)
