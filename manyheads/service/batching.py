"""Dynamic batching of requests whose results are computed for whole texts, unlike token-by-token generation.

Requests that arrive while a model computes a batch form the next batch of this model.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError
from manyheads.service.errors import Refused, busy, shutting_down
from manyheads.service.logs import log
from manyheads.service.metrics import Metrics

# After a batch, a worker waits at most this number of seconds for new requests from the same clients.
LINGER_SECONDS = 0.004
QUIET_SECONDS = 0.001  # A worker stops waiting before LINGER_SECONDS if no request arrives for this number of seconds.


class FairLock:
    """Fair lock for computation: the models of a process compute one at a time, in the order of their requests.

    Two models cannot have different thread counts and kernel settings at the same time, because these apply to the
    whole process. A single kernel uses all processors anyway.
    """

    def __init__(self) -> None:
        self._guard, self._taken = threading.Lock(), False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        gate = threading.Lock()
        with self._guard:
            if self._taken:
                gate.acquire()
                self._waiting.append(gate)
            self._taken = True
        gate.acquire()  # Wait until the computation that has the lock is finished.

    def __exit__(self, *_: object) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


Items: TypeAlias = list[Any]  # inputs of one kind: texts, tuples of texts, or images
Results: TypeAlias = list[Any]  # one result for each item; the class of the results depends on the command
# Function that computes the results for a list of items. Raises ItemError for an item that the model cannot read.
Run: TypeAlias = Callable[[Items], Sequence[object]]


def characters(item: object) -> int:
    """Return the number of characters in a text or in a tuple of texts, and 0 for other items."""
    return sum(len(text) for text in (item if isinstance(item, tuple) else (item,)) if isinstance(text, str))


@dataclass(eq=False)
class Request:
    """Items of one client's request, such as texts, with the function that computes their results.

    key      value that is equal for requests that can share a batch, such as command and options. The function `run` of
             any of these requests computes the batch
    field    field of the client's request that contains the items, for error messages
    run      function that computes the results for a list of items
    items    items of the request
    first    number of items of the client's request before these, if it is submitted in several parts
    future   future of the results of all items
    taken    number of items that are already part of a batch
    results  results that are already computed
    """

    key: Hashable
    field: str
    run: Run
    items: Items
    first: int = 0
    future: Future[Results] = dataclasses.field(default_factory=Future)
    taken: int = 0
    results: Results = dataclasses.field(default_factory=list)

    def part(self, max_items: int, max_characters: int, *, alone: bool) -> Items:
        """Return the items of this request that are not yet computed and fit into the limits of a batch.

        alone  True if the batch contains no other request. The first item is then returned even if it exceeds the
               limits
        """
        items = self.items[self.taken : self.taken + max_items]
        fits = sum(size <= max_characters for size in accumulate(map(characters, items)))
        return items[: max(fits, alone)]


class Worker(ABC):
    """Thread of a model, which processes the submitted requests.

    Subclasses start the thread at the end of their `__init__`.
    """

    def __init__(self, name: str, turns: FairLock, metrics: Metrics, max_waiting: int) -> None:
        self.name, self._turns, self._metrics, self._max_waiting = name, turns, metrics, max_waiting
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def close(self) -> None:
        """Finish all requests that were accepted, and stop the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @abstractmethod
    def _work(self) -> None:
        """Process requests until the worker is closed and its queue of requests is empty."""


class Batcher(Worker):
    """Queue of requests for a model, with the thread that processes them in batches.

    max_items       maximum number of items in a batch, so that other models do not wait long for it
    max_characters  maximum number of characters in a batch. A single text with more characters forms its own batch
    max_waiting     maximum number of items in the queue
    """

    def __init__(
        self, name: str, turns: FairLock, metrics: Metrics, *, max_items: int, max_characters: int, max_waiting: int
    ) -> None:
        super().__init__(name, turns, metrics, max_waiting)
        self._max_items, self._max_characters = max_items, max_characters
        self._requests: deque[Request] = deque()
        self._waiting = 0  # number of items that wait in the queue
        # number of requests in the last batch, and mean computing time per item in seconds
        self._last, self._seconds = 1, 0.1
        self._thread.start()

    def submit(self, key: Hashable, run: Run, items: Items, field: str, first: int = 0) -> Future[Results]:
        """Return a future for the results of the items, in input order. Raises Refused if the queue is full.

        first  number of items of the client's request before these, for error messages
        """
        # A request with more items than the maximum length of the queue can never be accepted.
        if len(items) > self._max_waiting:
            fault = f"found {len(items):,} items at once: expected at most {self._max_waiting:,}"
            raise Refused(400, fault, field=field, code="too_long")
        request = Request(key, field, run, items, first)
        with self._changed:
            if self._closed:
                raise shutting_down()
            if self._waiting + len(items) > self._max_waiting:
                raise busy(self._waiting * self._seconds)
            self._requests.append(request)
            self._waiting += len(items)
            self._changed.notify()
        return request.future

    def _work(self) -> None:
        while (parts := self._next()) is not None:
            if not parts:
                continue
            began = time.monotonic()
            try:
                with self._turns:
                    self._compute([*parts])
            # The error is not an ItemError, so its cause is a bug or a lack of memory, not an item.
            except BaseException as error:
                log.exception("a batch failed", extra={"more": {"model": self.name}})
                for request, _ in parts:
                    self._settle(request, error)
            items = sum(len(part) for _, part in parts)
            self._metrics.batch.labels(self.name).observe(items)
            self._seconds = 0.9 * self._seconds + 0.1 * (time.monotonic() - began) / items
            self._last = sum(request.future.done() for request, _ in parts)

    def _next(self) -> list[tuple[Request, Items]] | None:
        """Return the items of the next batch, with the requests that they belong to.

        The batch takes items from the first waiting request and from other requests with the same key, within the
        limits. The list is empty if all requests were canceled. Returns None if the worker is closed and the queue is
        empty.
        """
        with self._changed:
            while not self._requests:
                self._metrics.waiting.labels(self.name).set(0)
                if self._closed:
                    return None
                self._changed.wait()
            until = time.monotonic() + LINGER_SECONDS
            while len(self._requests) < self._last and (seconds_left := until - time.monotonic()) > 0:
                if not self._changed.wait(min(QUIET_SECONDS, seconds_left)):
                    break
            parts: list[tuple[Request, Items]] = []
            items_left, characters_left, key = self._max_items, self._max_characters, self._requests[0].key
            for request in list(self._requests):
                if request.future.cancelled() or request.future.done():
                    self._forget(request)
                elif request.key == key and (part := request.part(items_left, characters_left, alone=not parts)):
                    request.taken += len(part)
                    items_left -= len(part)
                    characters_left -= sum(map(characters, part))
                    self._waiting -= len(part)
                    parts.append((request, part))
                    if request.taken == len(request.items):
                        self._requests.remove(request)
            self._metrics.waiting.labels(self.name).set(self._waiting)
        return parts

    def _compute(self, parts: list[tuple[Request, Items]]) -> None:
        """Compute the results of all items in a batch.

        If an item is unusable, only the request that contains it gets an error.
        """
        while parts:
            items = [item for _, part in parts for item in part]
            places = [(number, at) for number, (_, part) in enumerate(parts) for at in range(len(part))]
            try:
                results = iter(parts[0][0].run(items))
            except ItemError as error:
                number, at = places[error.index]
                request, part = parts.pop(number)
                self._settle(request, refused(error.fault, request, request.taken - len(part) + at))
            except UserError as error:
                if len(parts) == 1:
                    return self._settle(parts[0][0], refused(str(error), parts[0][0], None))
                for one in parts:
                    self._compute([one])
                return
            else:
                for request, part in parts:
                    request.results += [next(results) for _ in part]
                    if len(request.results) == len(request.items):
                        self._settle(request, None)
                return

    def _settle(self, request: Request, error: BaseException | None) -> None:
        if request.future.done() or not request.future.set_running_or_notify_cancel():
            return
        if error is None:
            request.future.set_result(request.results)
        else:
            with self._changed:
                self._forget(request)
            request.future.set_exception(error)

    def _forget(self, request: Request) -> None:
        if request in self._requests:
            self._requests.remove(request)
            self._waiting -= len(request.items) - request.taken


def refused(fault: str, request: Request, index: int | None) -> Refused:
    single = len(request.items) == 1 and not request.first
    name = request.field if index is None or single else f"{request.field}.{request.first + index}"
    # Leave out the hint about the command-line option --truncate: clients have the field `truncate` instead.
    message = fault.replace(" (--truncate)", "")
    return Refused(400, message, field=name, code="invalid_value")
