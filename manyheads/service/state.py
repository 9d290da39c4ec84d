"""The shared state of a service, which every route reads: its models, limits, queues and counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from manyheads.service import computing
from manyheads.service.batching import Batcher, characters
from manyheads.service.errors import Refused
from manyheads.service.metrics import Metrics
from manyheads.service.registry import Registry, Served
from manyheads.service.request_body import while_there
from manyheads.service.run_api import Runs


@dataclass(frozen=True)
class Limits:
    """Limits of one client, or of all together.

    body          bytes of a request; `keyed_body`: of a request that is read before its key is checked
    characters    of all texts of a request, and of all texts in a batch
    body_seconds  until its body has arrived; `deadline` until it is answered
    most_waiting  texts that wait for a model; more are refused with 429
    most_items    texts that a model computes at once; `positions` that texts being written may hold together
    """

    body: int = 4 * 2**20
    keyed_body: int = 2**16
    characters: int = 100_000
    body_seconds: float = 20.0
    deadline: float = 300.0
    most_waiting: int = 512
    most_items: int = 64
    rows: int = 32
    positions: int = 32_768


LOCAL = ("localhost", "127.0.0.1", "[::1]")  # what every machine calls itself


@dataclass(eq=False)
class Service:
    """The models, limits and queues that all routes share.

    looks     the queue of requests for attention maps: one input at a time
    images    the queue of images to be decoded, for which no model waits: one at a time, as each takes much memory
    runs      whose curves are shown
    names     what this machine is called by, where it alone is served; empty: others are, too
    token     what clients must know; None: nothing
    detector  the model that tells languages
    draining  set by a signal to stop: accepted requests are finished, new ones are refused
    """

    registry: Registry
    limits: Limits
    metrics: Metrics
    looks: Batcher
    images: Batcher
    runs: Runs
    names: tuple[str, ...] = LOCAL
    token: str | None = None
    detector: str | None = None
    draining: bool = False

    def bounded(self, items: list[Any], field: str) -> None:
        """Raises Refused for more characters, of texts or pairs of them, than a request may have."""
        size = sum(map(characters, items))
        if size > self.limits.characters:
            fault = f"{size:,} characters: expected at most {self.limits.characters:,} in a request"
            raise Refused(400, fault, field=field, code="too_long")

    async def computed(
        self, request: Request, served: Served, verb: str, items: list[Any], field: str, **how: Any
    ) -> list[Any]:
        """The results of a verb for each item, from a batch that other requests share."""
        self.bounded(items, field)
        assert isinstance(served.worker, Batcher)
        key = (verb, *sorted(how.items()))
        future = served.worker.submit(key, computing.run(served.predictor, verb, **how), items, field)
        return await while_there(request, asyncio.wrap_future(future), self.limits.deadline)
