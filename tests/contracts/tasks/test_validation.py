"""Every task divides its validation among the ranks, and all ranks get the metrics of a single process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from manyheads.core.runtime import prepare
from manyheads.data.text.pretraining import PretrainingData, Rules, Special
from manyheads.data.text.store import TokenStore
from manyheads.data.text.tokenized_documents import TokenizedDocuments
from manyheads.data.text.tokenizers import train_bpe, train_wordpiece
from manyheads.models.directions import DirectionalConfig, DirectionalEncoder
from manyheads.models.presets import build, preset
from manyheads.tasks.translation.objective import Corpus, TranslationObjective
from manyheads.training import distributed_map as division
from manyheads.training.distributed import DistributedContext
from manyheads.training.objective import Objective
from papers.directions.task import DirectionsTask


@dataclass(frozen=True)
class ThreadRanks(DistributedContext):
    """Ranks that are threads of one process."""

    barrier: Any = None
    values: Any = None  # one for each rank

    def all_gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait(60)
        gathered = list(self.values)
        self.barrier.wait(60)
        return gathered


def translation_task(folder: Path) -> Objective:
    """9 pairs in 9 batches."""
    sources, targets = ["a b c d e f g h i j", "b", "c d"] * 3, ["c", "d e f g h i j a b c", "e f"] * 3
    tokenizer = train_bpe(sources + targets, 40)
    size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id("</s>")
    model = build(preset("universal/tiny", source_vocab=size, target_vocab=size, pad=size - 1, start=size - 1, end=end,
                         width=16, heads=2, feed_forward=16, steps=3, dropout=0.0, halting="basic"))  # fmt: skip
    source, target = (TokenStore.of(texts, tokenizer, folder / "tokens") for texts in (sources, targets))
    corpus = Corpus(source, target, 64)
    return TranslationObjective(
        model, tokenizer, None, corpus, corpus, compute=prepare(threads=1), batch_tokens=11, smoothing=0.0, seed=1
    )


def directions_task(_: Path) -> Objective:
    texts = ["two dogs see one cat", "one cat sleeps", "two cats see", "some dogs sleep here today", "a cat sees"]
    tokenizer = train_wordpiece(texts * 3, 60)
    size = tokenizer.get_vocab_size()
    model = DirectionalEncoder(DirectionalConfig(size, "two_lstms", width=24, heads=2, feed_forward=40))
    documents = TokenizedDocuments.of([[text] for text in texts], tokenizer)
    data = PretrainingData(documents, Rules(next_sentence=False, short=0.0), Special.of(tokenizer), size, seed=1)
    return DirectionsTask(model, tokenizer, data, data, compute=prepare(threads=1), batch_tokens=8, seed=1)


@pytest.mark.parametrize("same_calls", [False, True])
@pytest.mark.parametrize("make", [translation_task, directions_task])
def test_ranks_share_a_validation(make: Any, same_calls: bool, tmp_path: Path, monkeypatch: Any) -> None:
    torch.manual_seed(1)
    task = make(tmp_path)
    task.model.eval()
    calls: dict[str, int] = {}

    def count(module: nn.Module, *_: Any) -> None:
        name = threading.current_thread().name
        calls[name] = calls.get(name, 0) + 1

    modules = [module for module in task.model.modules() if not [*module.children()]]
    modules[-1].register_forward_hook(count)
    with torch.no_grad():
        alone = task.validate()
    (of_all,) = calls.values()
    calls.clear()
    world = 2
    barrier, values = threading.Barrier(world), [None] * world
    ranks = {f"rank_{rank}": ThreadRanks(rank, world, rank, None, barrier, values) for rank in range(world)}
    monkeypatch.setattr(division, "distributed_context", lambda: ranks[threading.current_thread().name])

    def validate(rank: int) -> dict[str, float]:
        threading.current_thread().name = f"rank_{rank}"
        with torch.no_grad(), division.divide_batches(same_calls=same_calls):
            found: dict[str, float] = task.validate()
            return found

    with ThreadPoolExecutor(world) as pool:
        assert [*pool.map(validate, range(world))] == [alone] * world
    assert alone.keys() == task.metrics.keys()
    assert max(calls.values()) < of_all
    assert sum(calls.values()) == of_all if not same_calls else calls["rank_0"] == calls["rank_1"]
