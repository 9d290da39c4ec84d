"""One route of the service: its handler, and the schemas of its request and response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from manyheads.service import schemas
from manyheads.service.reading import JSON
from manyheads.service.state import Service

Handler = Callable[[Service, Any, Request], Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """A route. `asks`: what its request says; `gives`: what it answers, `many`: a list of these; `form`: requests may
    be forms, too; `mimes`: of the answer."""

    method: str
    path: str
    handler: Handler
    summary: str
    asks: type[schemas.Body] | None = None
    gives: type[schemas.Answer] | None = None
    many: bool = False
    form: bool = False
    mimes: tuple[str, ...] = (JSON,)
