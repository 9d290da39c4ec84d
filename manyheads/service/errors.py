"""How a request is refused: one exception, and the shapes in which clients expect to be told."""

from __future__ import annotations

from typing import Any

LIBRETRANSLATE = ("/translate", "/languages", "/detect")
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refused(Exception):
    """A request that is not answered.

    field    the part of the request that is at fault, as "texts.3"
    headers  more for the response
    """

    def __init__(
        self, status: int, message: str, field: str | None = None, code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.field, self.code = status, message, field, code
        self.headers = headers or {}

    def document(self, path: str) -> dict[str, Any]:
        """The body of the response: as LibreTranslate's clients expect it on its paths, else as OpenAI's."""
        message = f"{self.field}: {self.message}" if self.field else self.message
        if path in LIBRETRANSLATE:
            return {"error": message}
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": message, "type": kind, "param": self.field, "code": self.code}}


def busy(seconds: float) -> Refused:
    """More is waiting than is to wait; `seconds` until there may be room."""
    again = {"Retry-After": str(max(1, round(seconds)))}
    return Refused(429, "too much is waiting: try again later", code="queue_full", headers=again)


def leaving() -> Refused:
    return Refused(
        503, "the service is shutting down", code="shutting_down", headers={"Retry-After": "5", "Connection": "close"}
    )
