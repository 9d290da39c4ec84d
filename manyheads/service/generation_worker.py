"""Worker thread for text generation with continuous batching.

Each language model has one thread and one batch. At any generation step, new texts can join the batch, and finished
texts leave it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from manyheads.generation import ContinuousBatch, Sampling, Text, TextStream
from manyheads.generation.scoring import TokenScore, prompt_scores
from manyheads.service.batching import FairLock, Worker
from manyheads.service.errors import busy, shutting_down
from manyheads.service.logs import log
from manyheads.service.metrics import Metrics
from manyheads.tasks.loading import LoadedModel

CHUNK = 256  # maximum number of prompt tokens that the model reads between two generation steps

Reason = Literal["stop", "length"]


@dataclass(frozen=True)
class Piece:
    """Newly generated piece of one text of a request.

    index   index of the text in the request
    text    characters of the piece
    reason  reason for which the generation of the text ended; None if it continues
    tokens  number of tokens generated for this text so far
    """

    index: int
    text: str
    reason: Reason | None
    tokens: int


@dataclass(eq=False)
class GenerationRequest:
    """Request for text generation, with the queue of generated pieces that the client has not yet received.

    If the generation fails, the last element of the queue is the exception.
    """

    texts: list[Text]
    streams: list[TextStream]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    pieces: asyncio.Queue[Piece | BaseException] = field(default_factory=asyncio.Queue)
    began: float = field(default_factory=time.monotonic)


class GenerationWorker(Worker):
    """Queue of requests for a language model, with the batch of texts that it generates.

    rows         maximum number of texts in the batch
    positions    maximum number of tokens in all texts of the batch (see `ContinuousBatch`)
    max_waiting  maximum number of texts that wait until they can join the batch
    """

    def __init__(
        self, name: str, predictor: LoadedModel, turns: FairLock, metrics: Metrics, *, rows: int, positions: int,
        max_waiting: int,
    ) -> None:  # fmt: skip
        super().__init__(name, turns, metrics, max_waiting)
        self._model = model = predictor.compiled
        self._tokenizer, self.context = predictor.tokenizer, predictor.model.config.max_positions
        self._rows = rows

        def empty() -> ContinuousBatch[Any]:
            return ContinuousBatch(
                model.start, model.step, context=self.context, end=predictor.end, chunk=CHUNK, rows=rows,
                max_cached=positions, suppressed=predictor.unused,
            )  # fmt: skip

        self._empty, self._batch = empty, empty()
        self._owners: dict[Text, tuple[GenerationRequest, int]] = {}
        self._arrived: list[GenerationRequest] = []
        self._canceled: list[GenerationRequest] = []
        self._seconds = 1.0  # mean number of seconds for a text, updated after each text
        self._thread.start()

    def submit(
        self, prompts: Sequence[list[int]], sampling: Sampling, limit: int, stop: Sequence[str], seeds: Sequence[int],
        top: int | None = None,
    ) -> GenerationRequest:  # fmt: skip
        """Submit prompts for generation, and return the request. Must be called in the event loop.

        prompts  token ids of each prompt
        limit    maximum number of tokens to generate for each prompt
        stop     strings at which the generation of a text ends
        seeds    random seed of each text
        top      number of likeliest tokens in the scores of each generated token. If None, tokens have no scores

        Raises Refused if the queue is full.
        """
        texts = [Text([*ids], sampling, limit, seed, top=top) for ids, seed in zip(prompts, seeds, strict=True)]
        request = GenerationRequest(texts, [TextStream(self._tokenizer, ids, stop) for ids in prompts])
        with self._changed:
            if self._closed:
                raise shutting_down()
            waiting = len(self._batch.waiting) + sum(len(other.texts) for other in self._arrived)
            if waiting + len(texts) > self._max_waiting:
                raise busy(waiting / self._rows * self._seconds)
            self._arrived.append(request)
            self._changed.notify()
        return request

    def prompt_scores(self, ids: Sequence[int], top: int) -> list[TokenScore]:
        """Return the scores of all tokens of a prompt but the first. Blocks until the model is free."""
        with self._turns, self._model.compute.autocast():
            return prompt_scores(self._model.step, self._model.start(1, len(ids)), ids, top)

    def cancel(self, request: GenerationRequest) -> None:
        """Remove the unfinished texts of a request from the batch, at the next generation step."""
        with self._changed:
            self._canceled.append(request)
            self._changed.notify()

    def _work(self) -> None:
        while self._update_batch():
            try:
                with self._turns, self._model.compute.autocast():
                    sampled = self._batch.step()
                self._send_pieces(sampled)
            except BaseException as error:  # The error is due to a bug or a lack of memory, not to a request.
                log.exception("a step failed", extra={"more": {"model": self.name}})
                for request in {request for request, _ in self._owners.values()}:
                    _send(request, [error])
                self._owners.clear()
                self._batch = self._empty()

    def _update_batch(self) -> bool:
        """Add the texts of new requests to the batch, and remove the texts of canceled requests.

        Returns False if the worker is closed and all texts are finished.
        """
        with self._changed:
            while not (self._arrived or self._batch.busy):
                self._canceled.clear()
                if self._closed:
                    return False
                self._changed.wait()
            arrived, self._arrived = self._arrived, []
            canceled, self._canceled = self._canceled, []
            for request in arrived:
                self._batch.admit(request.texts)
        for request in arrived:
            self._owners |= {text: (request, index) for index, text in enumerate(request.texts)}
        for request in canceled:
            unfinished = [text for text in request.texts if self._owners.pop(text, None)]
            if unfinished:
                self._metrics.cancelled.labels(self.name).inc()
                self._batch.drop(unfinished)
        self._metrics.waiting.labels(self.name).set(len(self._batch.waiting))
        return True

    def _send_pieces(self, sampled: Sequence[tuple[Text, int]]) -> None:
        """Send the newly generated pieces to the clients.

        A text that ends or reaches a stop string is removed from the batch.
        """
        if not sampled and not self._batch.texts:
            return
        self._metrics.batch.labels(self.name).observe(len(self._batch.texts))
        self._metrics.tokens.labels(self.name, "written").inc(len(sampled))
        pieces_by_request: dict[GenerationRequest, list[Piece | BaseException]] = {}
        tokens = dict(sampled)
        for text in self._batch.texts:
            if text not in self._owners:
                continue
            request, index = self._owners[text]
            stream = request.streams[index]
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
                self._seconds = 0.9 * self._seconds + 0.1 * (time.monotonic() - request.began)
            if piece or reason:
                pieces_by_request.setdefault(request, []).append(Piece(index, piece, reason, text.added))
        for request, pieces in pieces_by_request.items():
            _send(request, pieces)


def _send(request: GenerationRequest, pieces: Sequence[Piece | BaseException]) -> None:
    def put() -> None:
        for piece in pieces:
            request.pieces.put_nowait(piece)

    with contextlib.suppress(RuntimeError):  # If the event loop is closed, no client waits for this piece.
        request.loop.call_soon_threadsafe(put)
