"""Prometheus metrics of the service, summed over all of its processes."""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
# Environment variable for the directory where processes share their counts. It must be set before this module is
# imported.
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """Prometheus metrics of one server process. The route /metrics sums them over all processes."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        self.requests = Counter(
            "manyheads_requests", "Requests by method, route and status", ["method", "route", "status"], registry=own
        )
        self.seconds = Histogram(
            "manyheads_request_seconds", "Seconds from the request's headers to the end of the response", ["route"],
            buckets=SECONDS, registry=own,
        )  # fmt: skip
        self.waiting = Gauge(
            "manyheads_waiting", "Texts in the queue of a model", ["model"], multiprocess_mode="livesum", registry=own
        )
        self.batch = Histogram(
            "manyheads_batch_texts", "Texts in a batch", ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128), registry=own,
        )  # fmt: skip
        self.tokens = Counter("manyheads_tokens", "Tokens read and written", ["model", "kind"], registry=own)
        self.cancelled = Counter(
            "manyheads_cancelled", "Canceled requests for text generation", ["model"], registry=own
        )

    def text(self) -> bytes:
        if MULTIPROCESS in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
            return generate_latest(registry)
        return generate_latest(self._registry)
