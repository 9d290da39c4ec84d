"""Batches: bounded, complete, similar in length, determined by seed and epoch."""

import subprocess
import sys
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from manyheads.data.batching import pad, token_batches
from tests.paths import ROOT

Lengths = NDArray[np.int64]


def corpus(count: int) -> tuple[Lengths, Lengths]:
    """Lengths distributed and correlated about as those of captions."""
    random = np.random.default_rng(0)
    source = np.maximum(3, random.gamma(9, 1.7, count)).astype(np.int64)
    return source, np.maximum(3, source * random.lognormal(0, 0.2, count)).astype(np.int64)


def padding(source: Lengths, target: Lengths, batches: list[NDArray[np.int64]]) -> float:
    padded = sum(pad([np.ones(side[i]) for i in b], 0).size for b in batches for side in (source, target))
    return 1 - float((source + target).sum()) / padded


@pytest.mark.parametrize(("budget", "limit"), [(64, None), (300, None), (300, 7), (300, 1), (10**9, None)])
def test_every_sentence_occurs_once_within_the_budget(budget: int, limit: int | None) -> None:
    source, target = corpus(800)
    source, target = np.minimum(source, 64), np.minimum(target, 64)
    batches = token_batches(source, target, budget, seed=1, epoch=2, max_sentences=limit)
    assert sorted(np.concatenate(batches).tolist()) == list(range(800))
    for batch in batches:
        assert len(batch) * max(source[batch].max(), target[batch].max()) <= budget
        assert 0 < len(batch) <= (limit or 800)


def test_small_and_impossible_corpora_are_handled() -> None:
    assert token_batches([], [], 10, seed=0, epoch=0) == []
    assert [b.tolist() for b in token_batches([4], [10], 10, seed=0, epoch=0)] == [[0]]
    with pytest.raises(ValueError, match="sentence 2 has 11 tokens, but a batch takes at most 10"):
        token_batches([4, 11], [4, 4], 10, seed=0, epoch=0)
    with pytest.raises(ValueError, match="as many source lengths as target lengths, found 2 and 1"):
        token_batches([4, 11], [4], 10, seed=0, epoch=0)


def test_order_depends_only_on_seed_and_epoch() -> None:
    source, target = corpus(500)

    def batches(seed: int, epoch: int) -> list[list[int]]:
        return [b.tolist() for b in token_batches(source, target, 200, seed=seed, epoch=epoch)]

    first = batches(3, 4)
    np.random.seed(9)
    assert batches(3, 4) == first
    for other in (batches(3, 5), batches(4, 4)):
        assert other != first
        assert not {frozenset(b) for b in other} >= {frozenset(b) for b in first}  # members change, not just the order
    code = (
        "from tests.unit.data.test_batching import *; s, t = corpus(500);"
        "print([b.tolist() for b in token_batches(s, t, 200, seed=3, epoch=4)])"
    )
    root = str(ROOT)
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == str(first)


@pytest.mark.parametrize("budget", [1024, 3072])
def test_padding_is_small_and_batching_fast(budget: int) -> None:
    source, target = corpus(29_000)
    started = time.process_time()
    batches = token_batches(source, target, budget, seed=0, epoch=0)
    assert time.process_time() - started < 0.2
    assert padding(source, target, batches) < 0.05
    assert len(batches) < 1.08 * np.maximum(source, target).sum() / budget  # batches are full


def test_sequences_are_padded() -> None:
    rows = pad([np.array([1, 2], np.uint16), [3], []], 9)
    assert rows.tolist() == [[1, 2], [3, 9], [9, 9]]
    assert rows.dtype == np.int64
    assert pad([], 0).shape == (0, 0)
