"""ASGI middleware for all requests: it checks access, adds a request id, counts the request and logs it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import time

from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from manyheads.files import JsonObject
from manyheads.service.errors import LIBRETRANSLATE, Refused, shutting_down
from manyheads.service.logs import log, log_event
from manyheads.service.request_body import ClientDisconnected
from manyheads.service.state import Service

PUBLIC_PATHS = "/healthz", "/"  # paths that clients may request without a token, like the files of the web page
PUBLIC_PREFIX = "/page/"
DISCONNECTED = 499  # status code in logs and metrics if the client disconnected before it received a response
# If a response is sent before the request body was read: limits for reading the rest of the body (`_drain`).
LINGER_SECONDS, LINGER_BYTES = 2.0, 2**24


class AccessMiddleware:
    """ASGI middleware around the routes of the service."""

    def __init__(self, inner: ASGIApp, service: Service) -> None:
        self._inner, self._service = inner, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._inner(scope, receive, send)
        start_time, request_id, status = time.monotonic(), secrets.token_hex(8), DISCONNECTED
        unread, closing, delayed = _announces_body(scope), False, False

        async def receive_body() -> Message:
            nonlocal unread
            message = await receive()
            unread = message.get("more_body", False)
            return message

        async def send_response(message: Message) -> None:
            nonlocal status, closing, delayed
            if message["type"] == "http.response.start":
                status, closing = message["status"], unread
                headers = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
                if closing:  # The service has answered the request without reading its whole body.
                    headers.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *headers]
            elif closing and not message.get("more_body", False):
                # The connection is closed when the response ends. Therefore the rest of the request body is read before
                # the end of the response (`_drain`).
                message, delayed = {**message, "more_body": True}, True
            await send(message)

        service, path = self._service, scope["path"]
        about: JsonObject = {"request": request_id, "method": scope["method"], "path": path[:200]}
        scope.setdefault("state", {})["about"] = about
        try:
            self._check(scope)
            await self._inner(scope, receive_body, send_response)
        except ClientDisconnected:
            pass
        except Refused as refused:
            await _refuse(send_response, refused, path)
        # The router raises HTTPException for an unknown path or a wrong method.
        except HTTPException as error:
            about["fault"] = error.detail
            await _refuse(
                send_response, Refused(error.status_code, error.detail, headers=dict(error.headers or {})), path
            )
        except Exception:  # The client must get a response even if a handler has a bug.
            log.exception("a request failed", extra={"more": about})
            if status == DISCONNECTED:
                await _refuse(send_response, Refused(500, "the service failed: see its log"), path)
        finally:
            seconds = time.monotonic() - start_time
            matched = scope.get("route")
            route = matched.path if isinstance(matched, Route) else "other"
            method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
            service.metrics.requests.labels(method, route, status).inc()
            service.metrics.seconds.labels(route).observe(seconds)
            level = logging.DEBUG if path in ("/healthz", "/metrics") else logging.INFO
            log_event("request", level, **about, status=status, milliseconds=round(1000 * seconds, 1))
        if delayed:
            await _drain(receive)
            await send({"type": "http.response.body"})

    def _check(self, scope: Scope) -> None:
        """Raise Refused if the client is not allowed to send this request."""
        service = self._service
        if service.draining and scope["path"] != "/metrics":
            raise shutting_down()
        headers = {name: value for name, value in scope["headers"] if name in (b"host", b"authorization", b"origin")}
        host = headers.get(b"host", b"").decode("latin-1").lower()
        names = service.names
        # This check prevents DNS rebinding: a page of another site could reach this service by a name that resolves to
        # the service's address.
        if names and _host_name(host) not in names:
            raise Refused(421, f"expected one of {', '.join(names)}", field="Host", code="wrong_host")
        origin = headers.get(b"origin")  # Browsers add the header Origin to requests from pages of other sites.
        if names and origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            raise Refused(403, "requests from other origins are not allowed", field="Origin", code="wrong_origin")
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        scheme, _, token = authorization.partition(" ")
        scope["state"]["allowed"] = service.token is None or (
            scheme.lower() == "bearer" and tokens_equal(service.token, token)
        )
        token_in_body = scope["path"] in LIBRETRANSLATE  # Clients of LibreTranslate send the token in the request body.
        if not scope["state"]["allowed"] and not is_public_path(scope["path"]) and not token_in_body:
            raise unauthorized()


def _announces_body(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def _drain(receive: Receive) -> None:
    """Read and discard the rest of a request body, up to a limit.

    If a connection is closed before all data were read, the operating system resets it, and the client may not get the
    response.
    """
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while size < LINGER_BYTES and (message := await receive()).get("more_body", False):
                size += len(message["body"])


def is_public_path(path: str) -> bool:
    """Return True for a path that clients may request without a token. Public paths expose no data of models."""
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIX)


def unauthorized() -> Refused:
    return Refused(401, "missing or invalid token", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def tokens_equal(token: str, given: str) -> bool:
    """Compare two access tokens in constant time."""
    return hmac.compare_digest(token.encode(), given.strip().encode("utf-8", "surrogateescape"))


def _host_name(host: str) -> str:
    """Return the host name of an HTTP Host header, without the port."""
    head, _, port = host.rpartition(":")
    return head if head and port.isdecimal() else host


async def _refuse(send: Send, refused: Refused, path: str) -> None:
    body = json.dumps(refused.document(path)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refused.headers}
    raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
