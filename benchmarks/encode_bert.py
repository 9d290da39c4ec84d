"""Throughput of BERT base in texts per second, for one batch of 16 x 128 and for texts of mixed lengths.

Mixed lengths are batched as our predictors do it; for other libraries, in batches of 16 texts with similar lengths,
each padded to its longest text. A run takes every sixteenth batch, with a different first batch each time. Its amount
of work is counted in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.ceilings import Ceilings
from benchmarks.ours import compiled, computing, generator, precisions, seeded
from benchmarks.peers import openvino
from benchmarks.peers import transformers as hugging_face
from benchmarks.work import RELATIVE, Prepared, Side, Work, relative_error
from manyheads.analysis import costs
from manyheads.data.batching import pad, token_batches
from manyheads.inference import BOUNDS
from manyheads.models.bert import Bert

Batch = tuple[Tensor, Tensor]  # ids (B, T), lengths (B,)


@dataclass(frozen=True)
class Encoding:
    """So many texts of so many random tokens, `batch` of the longest at once; a run takes one batch of `every`."""

    texts: int
    shortest: int
    longest: int
    batch: int = 16
    every: int = 1
    preset: str = "bert/base-uncased"

    def inputs(self, vocabulary: int) -> list[list[int]]:
        lengths = torch.randint(self.shortest, self.longest + 1, (self.texts,), generator=generator())
        return [torch.randint(1, vocabulary, (length,), generator=generator(2)).tolist() for length in lengths.tolist()]


def padded(texts: Sequence[Sequence[int]]) -> Batch:
    return torch.from_numpy(pad(texts, 0)), torch.tensor([len(text) for text in texts])


def ours(case: Encoding, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset, head="none")
    texts = case.inputs(model.config.vocab)
    lengths = [len(text) for text in texts]
    rows = token_batches(lengths, lengths, case.batch * case.longest, seed=0, epoch=0)
    model = compiled(model, setting, threads)

    def encode(ids: Tensor, lengths: Tensor) -> Tensor:
        with torch.inference_mode(), model.compute.autocast():
            states: Tensor = model(ids, lengths)
            return states

    return _prepared(case, encode, texts, [padded([texts[i] for i in batch]) for batch in rows])


def with_openvino(case: Encoding, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset, head="none")
    texts = case.inputs(model.config.vocab)
    two = setting in openvino.AT_ONCE
    run: Callable[[Any], None] | None = None
    if two:
        network, run = openvino.encoder_at_once(States(model), padded(texts[:2]), setting, threads)
    else:
        network = openvino.encoder(States(model), padded(texts[:2]), setting, threads)
    return _prepared(case, lambda ids, lengths: torch.from_numpy(network(ids.numpy(), lengths.numpy())), texts,
                     _alike(case, texts, case.batch // (1 + two)), run)  # fmt: skip


def with_transformers(case: Encoding, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset, head="none")
    texts = case.inputs(model.config.vocab)
    other = hugging_face.twin(model, "AutoModel", setting).eval()

    def encode(ids: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        with torch.inference_mode(), computing(threads, "float32"):
            states: Tensor = other(ids, attention_mask=mask.long()).last_hidden_state
            return states

    return _prepared(case, encode, texts, _alike(case, texts))


class States(nn.Module):
    """The converted module: ids and lengths in, states out."""

    def __init__(self, model: Bert) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.model.encode(ids, lengths)


def _alike(case: Encoding, texts: Sequence[Sequence[int]], rows: int | None = None) -> list[Batch]:
    ordered, rows = sorted(texts, key=len), rows or case.batch
    return [padded(ordered[i : i + rows]) for i in range(0, len(ordered), rows)]


def _prepared(
    case: Encoding, encode: Callable[..., Tensor], texts: list[list[int]], batches: list[Batch],
    at_once: Callable[[Any], None] | None = None,
) -> Prepared:  # fmt: skip
    """encode: runs one batch; at_once: runs all batches of a turn, if the side takes several at once."""
    tokens = sum(map(len, texts))
    turns: Iterator[int] = count()

    def run() -> float:
        chosen = batches[next(turns) % case.every :: case.every]
        if at_once is not None:
            at_once([(ids.numpy(), lengths.numpy()) for ids, lengths in chosen])
        for ids, lengths in chosen if at_once is None else ():
            encode(ids, lengths)
        return sum(int(lengths.sum()) for _, lengths in chosen) / tokens

    ids, lengths = padded(texts[: case.batch])
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    return Prepared(run, np.asarray((encode(ids, lengths).float() * real[..., None]).numpy()))


def least(case: Encoding, precision: str, ceilings: Ceilings) -> float:
    """The products of the real tokens, and the weights once."""
    model: Any = costs.preset_model(case.preset)
    mean = (case.shortest + case.longest) // 2
    weights = sum(size for part, size in costs.parameters(model).items() if part.startswith("encoder"))
    return ceilings.least(precision, weights, case.texts * costs.flops(model, mean)["forward"])


WORK = Work(
    unit="texts/s",
    cases={"16 x 128": Encoding(16, 128, 128), "1,000 texts of 8 to 128": Encoding(1000, 8, 128, every=16)},
    amount=lambda case: case.texts, least=least, ours=Side(precisions(), ours),
    peers={
        "openvino": Side({**openvino.ENCODING, **openvino.AT_ONCE}, with_openvino),
        "transformers": Side(hugging_face.COMPILED, with_transformers),
    },
    error=relative_error, error_is=RELATIVE, bounds=BOUNDS,
)  # fmt: skip
