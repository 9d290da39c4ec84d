"""Logging as JSON, one object per line on stderr. The logs never contain the texts that clients send."""

from __future__ import annotations

import json
import logging
import sys

from manyheads.files import JsonObject

log = logging.getLogger("manyheads.service")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: JsonObject = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03}",
            "level": record.levelname.lower(), "process": record.process, "event": record.getMessage(),
            **vars(record).get("more", {}),
        }  # fmt: skip
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def configure(level: str) -> None:
    """Configure the loggers of the package, the service, uvicorn and asyncio.

    uvicorn and asyncio log only errors, because their warnings about malformed requests and disconnected clients do not
    help the operator of the service.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    levels = {"manyheads": "WARNING", "manyheads.service": level.upper(), "uvicorn": "ERROR", "asyncio": "ERROR"}
    for name, level_name in levels.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level_name)


def log_event(event: str, level: int = logging.INFO, **more: object) -> None:
    log.log(level, event, extra={"more": more})
