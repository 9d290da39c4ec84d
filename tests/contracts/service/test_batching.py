"""Batching of requests: a batched text gets the same answer as alone (float64), and queues are bounded.

Requests whose client has disconnected cost no further computation.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import manyheads
from manyheads.data.text.text_faults import ItemError
from manyheads.generation import Sampling
from manyheads.service import generation_worker as writing_module
from manyheads.service.batching import Batcher, FairLock
from manyheads.service.computing import run
from manyheads.service.errors import Refused
from manyheads.service.generation_worker import GenerationWorker
from manyheads.service.metrics import Metrics
from manyheads.service.openai import _collect_pieces
from tests.support.services import bert, language_model, translator

PROMPTS = ["the cat", "a", "the dog sat on the mat, " * 6, "cat", "on the", "the mat and the dog"]
WAYS = [
    Sampling(0.0),
    Sampling(),
    Sampling(0.7, top_k=9),
    Sampling(1.2, top_p=0.8),
    Sampling(0.0, repetition_penalty=1.3),
]


def writer(path: Path, rows: int = 4, max_waiting: int = 512) -> tuple[Any, GenerationWorker]:
    predictor = manyheads.load(path)
    predictor.model.double()
    return predictor, GenerationWorker(
        "lm", predictor, FairLock(), Metrics(), rows=rows, positions=10_000, max_waiting=max_waiting
    )  # fmt: skip


@pytest.mark.parametrize("chunk", [3, 256])
def test_joining_and_leaving_texts_do_not_change_results(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are rows, each with its own settings, seed and length, arriving one after the other."""
    monkeypatch.setattr(writing_module, "CHUNK", chunk)
    predictor, served = writer(language_model(tmp_path / "lm", max_positions=64))
    asked = [(PROMPTS[i % 6], WAYS[i % 5], 5 + 13 * i % 90, 100 + i) for i in range(20)]

    async def one(number: int) -> str:
        await asyncio.sleep(0.01 * (number % 7))
        prompt, sampling, limit, seed = asked[number]
        (pieces,) = await _collect_pieces(served.submit(predictor.encode([prompt]), sampling, limit, [], [seed]))
        return "".join(piece.text for piece in pieces)

    async def everyone() -> list[str]:
        return await asyncio.gather(*map(one, range(len(asked))))

    found = asyncio.run(everyone())
    served.close()
    for text, (prompt, sampling, limit, seed) in zip(found, asked, strict=True):
        alone = predictor.continuations([prompt], sampling, max_tokens=limit, seed=seed)
        assert text == alone[0].text
    assert len(set(found)) > 10


def test_finished_texts_free_memory_without_changing_others(tmp_path: Path) -> None:
    predictor, served = writer(language_model(tmp_path / "lm"), rows=2)

    async def scene() -> str:
        ids = predictor.encode(["the cat"])
        long = [served.submit(ids, Sampling(), 100_000, [], [seed]) for seed in (1, 2)]
        waiting = served.submit(ids, Sampling(), 20, [], [3])
        await long[0].pieces.get()
        for each in long:
            served.cancel(each)
        (pieces,) = await asyncio.wait_for(_collect_pieces(waiting), 60)
        return "".join(piece.text for piece in pieces)

    found = asyncio.run(scene())
    served.close()
    assert found == predictor.continuations(["the cat"], Sampling(), max_tokens=20, seed=3)[0].text


def test_a_full_queue_is_reported(tmp_path: Path) -> None:
    predictor, served = writer(language_model(tmp_path / "lm"), rows=1, max_waiting=2)

    async def scene() -> None:
        ids = predictor.encode(["the cat"])
        accepted = [served.submit(ids, Sampling(), 100_000, [], [1])]
        await accepted[0].pieces.get()  # it has the only row
        accepted += [served.submit(ids, Sampling(), 100_000, [], [seed]) for seed in (2, 3)]
        with pytest.raises(Refused) as told:
            served.submit(ids, Sampling(), 100_000, [], [4])
        assert told.value.status == 429
        assert int(told.value.headers["Retry-After"]) >= 1
        for each in accepted:
            served.cancel(each)

    asyncio.run(scene())
    served.close()
    with pytest.raises(Refused, match="shutting down"):
        asyncio.run(_refused(served))


async def _refused(served: GenerationWorker) -> None:
    served.submit([[1]], Sampling(), 1, [], [1])


class Held:
    """Stand-in for a computation: it signals its start and waits for permission to continue."""

    def __init__(self) -> None:
        self.begun, self.may = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.may.wait(60)


def batcher(**more: int) -> Batcher:
    return Batcher("m", FairLock(), Metrics(), **{"max_items": 8, "max_characters": 1000, "max_waiting": 100, **more})


@pytest.mark.parametrize("kind", ["translate", "classify", "embed"])
def test_whole_texts_in_a_batch_and_alone(tmp_path: Path, kind: str) -> None:
    head: dict[str, Any] = {"head": "sequence", "labels": ("en", "de")} if kind == "classify" else {"head": "none"}
    predictor = manyheads.load(translator(tmp_path / "m") if kind == "translate" else bert(tmp_path / "m", **head))
    predictor.model.double()
    served = batcher()
    method = getattr(predictor, "predictions" if kind == "classify" else kind)
    texts = [PROMPTS[i % 2] + " cat" * (i % 5) for i in range(15)]
    futures = [served.submit(kind, run(predictor, method), [text], "texts") for text in texts]
    found = [future.result(60)[0] for future in futures]
    served.close()
    for text, together in zip(texts, found, strict=True):
        (alone,) = run(predictor, method)([text])
        if kind == "translate":
            assert together == alone
        elif kind == "classify":
            assert together[0].label == alone[0].label
            assert together[0].probability == pytest.approx(alone[0].probability, abs=1e-6)
        else:
            assert together.vector == pytest.approx(alone.vector, abs=1e-6)


def test_batches_form_while_the_model_is_busy_and_isolate_malformed_texts() -> None:
    served, held, sizes = batcher(), Held(), list[int]()

    def doubled(items: list[int]) -> list[int]:
        held()
        for index, item in enumerate(items):
            if item < 0:
                raise ItemError(index, "is negative")
        sizes.append(len(items))
        return [2 * item for item in items]

    first = served.submit("a", doubled, [0], "texts")
    assert held.begun.wait(60)
    others = [served.submit("a", doubled, [i, i + 1], "texts") for i in (1, 2, 3)]
    faulty = served.submit("a", doubled, [5, -1], "texts")
    left = served.submit("a", doubled, [7], "texts")
    left.cancel()
    other_kind = served.submit("b", doubled, [9], "texts")
    held.may.set()
    assert first.result(60) == [0]
    assert [future.result(60) for future in others] == [[2, 4], [4, 6], [6, 8]]
    with pytest.raises(Refused, match="is negative") as told:
        faulty.result(60)
    assert told.value.field == "texts.1"
    assert other_kind.result(60) == [18]
    served.close()
    assert sizes == [1, 6, 1]


def test_many_texts_take_several_batches_and_a_full_queue_is_reported() -> None:
    served, held = batcher(max_waiting=20), Held()

    def same(items: list[int]) -> list[int]:
        held()
        assert len(items) <= 8
        return items

    first = served.submit("a", same, list(range(20)), "texts")
    assert held.begun.wait(60)
    second = served.submit("a", same, list(range(8)), "texts")
    with pytest.raises(Refused) as told:
        served.submit("a", same, [1], "texts")
    assert told.value.status == 429
    with pytest.raises(Refused, match="found 21 items at once: expected at most 20") as never:
        served.submit("a", same, list(range(21)), "texts")
    assert (never.value.status, never.value.field) == (400, "texts")
    held.may.set()
    assert first.result(60) == list(range(20))
    assert second.result(60) == list(range(8))
    served.close()


def test_a_batch_respects_the_limit_of_characters_per_request() -> None:
    """As all models wait for it. A longer text is read alone."""
    served, held, batches = batcher(max_characters=10), Held(), list[list[Any]]()

    def same(items: list[Any]) -> list[Any]:
        held()
        batches.append(items)
        return items

    first = served.submit("a", same, ["a" * 99], "texts")
    assert held.begun.wait(60)
    texts: list[list[Any]] = [["b" * 6, "c" * 4], ["d"], [("e" * 5, "f" * 6)], ["g" * 6, "h" * 5, "i"]]
    futures = [served.submit("a", same, items, "texts") for items in texts]
    held.may.set()
    assert [future.result(60) for future in (first, *futures)] == [["a" * 99], *texts]
    served.close()
    assert batches == [["a" * 99], texts[0], ["d", "g" * 6], texts[2], ["h" * 5, "i"]]


def test_an_internal_error_fails_its_requests_but_not_the_service() -> None:
    served = batcher()

    def broken(items: list[int]) -> list[int]:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        served.submit("a", broken, [1], "texts").result(60)
    assert served.submit("b", list, [1], "texts").result(60) == [1]
    served.close()


def test_any_number_of_cancelled_requests_is_handled() -> None:
    batcher = Batcher("m", FairLock(), Metrics(), max_items=8, max_characters=1000, max_waiting=9)
    for _ in range(1500):  # more than the interpreter's stack has frames
        with batcher._changed:  # so that the thread finds it given up
            batcher.submit("key", list, ["left"], "texts").cancel()
        while batcher._requests:
            time.sleep(0)
    assert batcher.submit("key", list, ["good"], "texts").result(5) == ["good"]
    batcher.close()


def test_turns_are_taken_in_order() -> None:
    turns, order = FairLock(), list[int]()

    def take(number: int) -> None:
        with turns:
            order.append(number)

    with turns:
        threads = []
        for number in range(8):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            while len(turns._waiting) <= number:
                time.sleep(0.001)
    for thread in threads:
        thread.join(60)
    assert order == list(range(8))
