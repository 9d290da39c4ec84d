"""Errors of HTTP requests: an exception, and its conversion to the error formats that clients expect."""

from __future__ import annotations

from manyheads.files import JsonObject

LIBRETRANSLATE = ("/translate", "/languages", "/detect", "/frontend/settings")
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refused(Exception):
    """Exception that the service returns to the client as an HTTP error response.

    status   HTTP status code
    message  description of the error, which follows the name of the field if there is one
    field    field of the request that caused the error, such as "texts.3"
    code     code of the error for programs, such as "too_long"
    headers  additional HTTP headers of the response
    """

    def __init__(
        self, status: int, message: str, field: str | None = None, code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.field, self.code = status, message, field, code
        self.headers = headers or {}

    def document(self, path: str) -> JsonObject:
        """Return the body of the error response.

        The body has LibreTranslate's error format on the paths of LibreTranslate, and OpenAI's error format elsewhere.
        """
        message = f"{self.field}: {self.message}" if self.field else self.message
        if path in LIBRETRANSLATE:
            return {"error": message}
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": message, "type": kind, "param": self.field, "code": self.code}}


def busy(seconds: float) -> Refused:
    """Return the error for a request that arrives while the queue is full.

    seconds  estimated time until the queue has room, for the header Retry-After
    """
    again = {"Retry-After": str(max(1, round(seconds)))}
    return Refused(429, "the queue is full: try again later", code="queue_full", headers=again)


def shutting_down() -> Refused:
    return Refused(
        503, "the service is shutting down", code="shutting_down", headers={"Retry-After": "5", "Connection": "close"}
    )
