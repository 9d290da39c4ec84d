"""Route of the HTTP service: its handler function, and the schemas of its request and response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from manyheads.service import schemas
from manyheads.service.request_body import JSON
from manyheads.service.state import Service

Reply: TypeAlias = Response | BaseModel | list[schemas.Language] | list[schemas.Detected]
Handler = Callable[[Service, Any, Request], Awaitable[Reply]]  # the second argument has the type `request_schema`


@dataclass(frozen=True)
class Endpoint:
    """Route of the HTTP service, with its handler function.

    request_schema   schema of the request; None if the request has no body
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
