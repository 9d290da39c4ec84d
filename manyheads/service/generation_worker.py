"""Text generation with continuous batching.

Each model has a thread and a batch, which texts can join and leave at any step.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from manyheads.generation import ContinuousBatch, Sampling, Text, TextStream
from manyheads.service.batching import Turns, Worker
from manyheads.service.errors import busy, leaving
from manyheads.service.logs import log
from manyheads.service.metrics import Metrics

CHUNK = 256  # maximum number of prompt tokens read between two generation steps

Reason = Literal["stop", "length"]


@dataclass(frozen=True)
class Piece:
    """New piece of one of a request's texts.

    reason  reason for the end of the text; None: the text continues
    tokens  number of tokens generated so far
    """

    index: int
    text: str
    reason: Reason | None
    tokens: int


@dataclass(eq=False)
class Writing:
    """Request for text generation, with the queue of its results. An exception in the queue ends the request."""

    texts: list[Text]
    streams: list[TextStream]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    pieces: asyncio.Queue[Piece | BaseException] = field(default_factory=asyncio.Queue)
    began: float = field(default_factory=time.monotonic)


class Writer(Worker):
    """Queue and batch of a language model.

    rows, positions  limits of the batch, see `ContinuousBatch`
    most_waiting     maximum number of texts that wait for a row in the batch
    """

    def __init__(
        self, name: str, predictor: Any, turns: Turns, metrics: Metrics, *, rows: int, positions: int, most_waiting: int
    ) -> None:
        super().__init__(name, turns, metrics, most_waiting)
        model, self._route = predictor.compiled
        self._tokenizer, self.context = predictor.tokenizer, predictor.model.config.max_positions
        self._rows = rows

        def empty() -> ContinuousBatch[Any]:
            return ContinuousBatch(
                model.start, model.step, context=self.context, end=predictor.end, chunk=CHUNK, rows=rows,
                positions=positions,
            )  # fmt: skip

        self._empty, self._batch = empty, empty()
        self._owners: dict[Text, tuple[Writing, int]] = {}
        self._arrived: list[Writing] = []
        self._left: list[Writing] = []
        self._seconds = 1.0  # running mean of the seconds per text
        self._thread.start()

    def submit(
        self, prompts: Sequence[list[int]], sampling: Sampling, limit: int, stop: Sequence[str], seeds: Sequence[int]
    ) -> Writing:
        """Submit prompts from the event loop. Raises Refused if the queue is full."""
        texts = [Text([*ids], sampling, limit, seed) for ids, seed in zip(prompts, seeds, strict=True)]
        writing = Writing(texts, [TextStream(self._tokenizer, ids, stop) for ids in prompts])
        with self._changed:
            if self._closed:
                raise leaving()
            waiting = len(self._batch.waiting) + sum(len(other.texts) for other in self._arrived)
            if waiting + len(texts) > self._most_waiting:
                raise busy(waiting / self._rows * self._seconds)
            self._arrived.append(writing)
            self._changed.notify()
        return writing

    def cancel(self, writing: Writing) -> None:
        """Remove the request's unfinished texts at the next step."""
        with self._changed:
            self._left.append(writing)
            self._changed.notify()

    def _work(self) -> None:
        while self._take():
            try:
                with self._turns, self._route.autocast():
                    sampled = self._batch.step()
                self._tell(sampled)
            except BaseException as error:  # a bug, or out of memory
                log.exception("a step failed", extra={"more": {"model": self.name}})
                for writing in {writing for writing, _ in self._owners.values()}:
                    _send(writing, [error])
                self._owners.clear()
                self._batch = self._empty()

    def _take(self) -> bool:
        """Update the batch with new and canceled requests.

        Returns False if the worker is closed and has nothing left to do.
        """
        with self._changed:
            while not (self._arrived or self._batch.busy):
                self._left.clear()
                if self._closed:
                    return False
                self._changed.wait()
            arrived, self._arrived = self._arrived, []
            left, self._left = self._left, []
            for writing in arrived:
                self._batch.admit(writing.texts)
        for writing in arrived:
            self._owners |= {text: (writing, index) for index, text in enumerate(writing.texts)}
        for writing in left:
            gone = [text for text in writing.texts if self._owners.pop(text, None)]
            if gone:
                self._metrics.cancelled.labels(self.name).inc()
                self._batch.drop(gone)
        self._metrics.waiting.labels(self.name).set(len(self._batch.waiting))
        return True

    def _tell(self, sampled: Sequence[tuple[Text, int]]) -> None:
        """Send each client the new pieces of its texts. Texts that end, or reach a stop string, leave the batch."""
        if not sampled and not self._batch.texts:
            return
        self._metrics.batch.labels(self.name).observe(len(self._batch.texts))
        self._metrics.tokens.labels(self.name, "written").inc(len(sampled))
        told: dict[Writing, list[Piece | BaseException]] = {}
        tokens = dict(sampled)
        for text in self._batch.texts:
            if text not in self._owners:
                continue
            writing, index = self._owners[text]
            stream = writing.streams[index]
            piece = stream.push(tokens[text]) if text in tokens else ""
            reason: Reason | None = None
            if stream.stopped or text.ended:
                reason = "stop"
            elif text.added == text.limit:
                reason = "length"
            if reason:
                piece += stream.finish()
                reason = "stop" if stream.stopped else reason
                self._batch.drop([text])
                del self._owners[text]
                self._seconds = 0.9 * self._seconds + 0.1 * (time.monotonic() - writing.began)
            if piece or reason:
                told.setdefault(writing, []).append(Piece(index, piece, reason, text.added))
        for writing, pieces in told.items():
            _send(writing, pieces)


def _send(writing: Writing, pieces: Sequence[Piece | BaseException]) -> None:
    def put() -> None:
        for piece in pieces:
            writing.pieces.put_nowait(piece)

    with contextlib.suppress(RuntimeError):  # the event loop is closed, so no client is waiting
        writing.loop.call_soon_threadsafe(put)
