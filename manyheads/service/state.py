"""Shared state of the service, available to every route: models, limits, queues and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request

from manyheads.service import computing
from manyheads.service.batching import Batcher, Items, Results, characters
from manyheads.service.errors import Refused
from manyheads.service.metrics import Metrics
from manyheads.service.registry import Registry, Served
from manyheads.service.request_body import while_connected
from manyheads.service.run_api import Runs
from manyheads.service.schemas import MAX_TEXTS


@dataclass(frozen=True)
class Limits:
    """Limits of a single request, and of all requests together.

    body          maximum size of a request body in bytes
    keyed_body    maximum size in bytes of a body that is read before its API key is checked
    characters    maximum number of characters in all texts of a request, and in all texts of a batch
    body_seconds  maximum time in seconds for the arrival of a body
    deadline      maximum time in seconds for a response
    max_waiting   maximum number of texts in a model's queue. Further requests get status 429
    max_items     maximum number of texts in a batch
    rows          maximum number of texts that a language model generates at once
    positions     maximum number of tokens in all texts that a language model generates at once
    """

    body: int = 4 * 2**20
    keyed_body: int = 2**16
    characters: int = 100_000
    body_seconds: float = 20.0
    deadline: float = 300.0
    max_waiting: int = 512
    max_items: int = 64
    rows: int = 32
    positions: int = 32_768


LOCAL = ("localhost", "127.0.0.1", "[::1]")  # host names and addresses of the local machine


@dataclass(eq=False)
class Service:
    """Models, limits and queues that all routes of the service share.

    attention_queue  queue for the computation of attention maps, one input at a time
    image_queue      queue for image decoding, one image at a time, because decoding needs much memory. It is separate
                     from the queues of the models, so that models do not wait for images
    runs             training runs whose learning curves are shown
    names            host names that requests may contain, for a service that only local clients can reach. If empty,
                     any name is allowed
    token            access token that clients must send. If None, no token is required
    detector         name of the model for language detection. If None, languages are not detected
    draining         True after a signal to stop. Accepted requests are finished, and new requests get an error
    """

    registry: Registry
    limits: Limits
    metrics: Metrics
    attention_queue: Batcher
    image_queue: Batcher
    runs: Runs
    names: tuple[str, ...] = LOCAL
    token: str | None = None
    detector: str | None = None
    draining: bool = False

    def check_length(self, items: Items, field: str) -> None:
        """Raise Refused if the texts or pairs of texts in a request have too many characters."""
        size = sum(map(characters, items))
        if size > self.limits.characters:
            fault = f"found {size:,} characters: expected at most {self.limits.characters:,} in a request"
            raise Refused(400, fault, field=field, code="too_long")

    async def compute(
        self, request: Request, served: Served, method: Callable[..., Results], items: Items, field: str,
        **options: object,
    ) -> Results:  # fmt: skip
        """Return the results of a method of the model's predictor, one for each item.

        The items may share a batch with items of other requests.

        request  HTTP request. If its client disconnects, the computation is canceled
        field    field of the request that contains the items, for error messages
        options  further keyword arguments of the method
        """
        self.check_length(items, field)
        # Do not submit a request without items: the worker would never finish it.
        return await self.compute_parts(request, served, method, [items] if items else [], field, **options)

    def split(self, items: Items, field: str) -> list[Items]:
        """Split the items of a request into parts that `compute_parts` submits to the queue of the model in turn.

        Other requests then wait for one part only. The limit of characters applies to each part. Raises Refused for a
        single item with more characters.
        """
        parts: list[Items] = [[]]
        size, most = 0, min(MAX_TEXTS, self.limits.max_waiting)  # characters of the last part; items of a part
        for item in items:
            self.check_length([item], field)
            size += characters(item)
            if size > self.limits.characters or len(parts[-1]) == most:
                parts.append([])
                size = characters(item)
            parts[-1].append(item)
        return parts

    async def compute_parts(
        self, request: Request, served: Served, method: Callable[..., Results], parts: list[Items], field: str,
        **options: object,
    ) -> Results:  # fmt: skip
        """Return the results for the items of all parts, in input order. See `compute` for the other arguments."""
        worker, run = served.worker, computing.run(served.predictor, method, **options)
        assert isinstance(worker, Batcher)

        async def results() -> Results:
            found: Results = []
            for part in parts:
                future = worker.submit((method, *sorted(options.items())), run, part, field, len(found))
                found = [*found, *await asyncio.wrap_future(future)]
            return found

        return await while_connected(request, results(), self.limits.deadline)
