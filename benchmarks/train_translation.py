"""Training throughput of a translator in target tokens per second: the blog model here and in the tutorial's loop.

The other side is the PyTorch translation tutorial: `torch.nn.Transformer`, batches of 128 sentences in random order,
padded to the longest, Adam, and logits of the whole batch. Ours is the same model (3 + 3 layers, width 512, nothing
tied) with the package's batches of similar lengths, loss, attention, dropout and fused Adam, in a process that keeps
freed memory, as `train` does. Both read the same word ids. Target tokens without padding are counted, with forward,
backward and update. The ids are random, with lengths distributed as in Multi30k's German and English sentences. The
weights of the two sides differ, so our loss is compared with PyTorch in float32, and the tutorial's with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.ceilings import Ceilings
from benchmarks.ours import computing, training_precisions
from benchmarks.training import LOSS
from benchmarks.work import Prepared, Side, Work
from manyheads.analysis import costs
from manyheads.core.runtime import retain_memory
from manyheads.data.batching import pad, token_batches
from manyheads.models.presets import build, preset
from manyheads.models.transformer import Transformer
from manyheads.training.loss import smoothed_cross_entropy

PAD, START, END = 0, 1, 2
SENTENCES = 128
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """Pairs of random sentences; the defaults are Multi30k's sizes."""

    pairs: int = 8192
    source_vocab: int = 18_487
    target_vocab: int = 10_829
    preset: str = "transformer/blog"

    def sentences(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return ids of sources and targets, each with its end token.

        Lengths follow Multi30k: 14.4 and 15.1 tokens on average, with a standard deviation of 0.31 of their logarithm
        and a correlation of 0.8.
        """
        random = np.random.default_rng(0)
        common = random.standard_normal(self.pairs)
        sides = []
        for mean, vocabulary in ((13.7, self.source_vocab), (14.4, self.target_vocab)):
            spread = 0.9 * common + 0.19**0.5 * random.standard_normal(self.pairs)
            lengths = np.clip(np.round(mean * np.exp(0.31 * spread)), 4, 44).astype(int)
            sides.append([[*random.integers(END + 1, vocabulary, length - 1).tolist(), END] for length in lengths])
        return sides[0], sides[1]

    def model(self) -> Any:
        return preset(self.preset, source_vocab=self.source_vocab, target_vocab=self.target_vocab, pad=PAD, end=END,
                      start=START)  # fmt: skip


class Tutorial(nn.Module):
    """The tutorial's Seq2SeqTransformer."""

    def __init__(self, source_vocab: int, target_vocab: int, width: int = 512) -> None:
        super().__init__()
        self.transformer = nn.Transformer(width, 8, 3, 3, 512, 0.1, batch_first=True)
        self.generator = nn.Linear(width, target_vocab)
        self.source, self.target = nn.Embedding(source_vocab, width), nn.Embedding(target_vocab, width)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("positions", torch.randn(512, width))  # their values do not matter for time

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        def embed(table: nn.Embedding, tokens: Tensor) -> Tensor:
            assert isinstance(self.positions, Tensor)
            return self.dropout(table(tokens) * table.embedding_dim**0.5 + self.positions[: tokens.shape[1]])

        causal = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), diagonal=1)
        hidden = self.transformer(
            embed(self.source, source), embed(self.target, target), tgt_mask=causal,
            src_key_padding_mask=source == PAD, tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
        )  # fmt: skip
        return self.generator(hidden)


def ours(case: Corpus, setting: str, threads: int) -> Prepared:
    sources, targets = case.sentences()
    lengths = [len(s) for s in sources], [len(t) for t in targets]
    batches = token_batches(*lengths, int(SENTENCES * np.mean(lengths[1])), seed=0, epoch=0)
    torch.manual_seed(0)
    model: Transformer = build(case.model())
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def loss(rows: Rows) -> Tensor:
        source, source_lengths, given, write = _tensors(sources, targets, rows)
        with computing(threads, setting):
            hidden = model.hidden(source, source_lengths, given)
            total = smoothed_cross_entropy(
                hidden.flatten(0, 1), model.output_weight, model.output_bias, write.flatten(), smoothing=0.0, pad=PAD
            )
            return total / int((write != PAD).sum())

    def step(rows: Rows) -> None:
        value = loss(rows)
        with computing(threads, "float32"):
            value.backward()
            adam.step()
            adam.zero_grad()

    return _prepared(model, step, targets, batches, lambda: loss(batches[0]))


def tutorial(case: Corpus, setting: str, threads: int) -> Prepared:
    sources, targets = case.sentences()
    shuffled = np.array_split(np.random.default_rng(0).permutation(len(sources)), -(-len(sources) // SENTENCES))
    model = Tutorial(case.source_vocab, case.target_vocab)
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)

    def step(rows: Rows) -> None:
        source, _, given, write = _tensors(sources, targets, rows)
        with computing(threads, setting):
            logits = model(source, given)
            loss = F.cross_entropy(logits.flatten(0, 1), write.flatten(), ignore_index=PAD)
        with computing(threads, "float32"):
            loss.backward()
            adam.step()
            adam.zero_grad()

    return _prepared(model, step, targets, shuffled)


def _tensors(sources: Sequence[list[int]], targets: Sequence[list[int]], rows: Rows) -> tuple[Tensor, ...]:
    """Return sources (B, Ts), their lengths (B,), decoder inputs and targets (B, Tt)."""
    chosen, wanted = [sources[i] for i in rows], [targets[i] for i in rows]
    lengths = torch.tensor([len(s) for s in chosen])
    given = pad([[START, *t[:-1]] for t in wanted], PAD)
    return torch.from_numpy(pad(chosen, PAD)), lengths, torch.from_numpy(given), torch.from_numpy(pad(wanted, PAD))


def _prepared(
    model: nn.Module, step: Callable[[Rows], None], targets: Sequence[list[int]], batches: Sequence[Rows],
    loss: Callable[[], Tensor] | None = None,
) -> Prepared:  # fmt: skip
    """Run one batch. Its weight is its number of target tokens.

    loss  the loss that is compared, without dropout; None: nothing is compared
    """
    tokens, turns = sum(map(len, targets)), count()

    def run() -> float:
        rows = batches[next(turns) % len(batches)]
        step(rows)
        return sum(len(targets[i]) for i in rows) / tokens

    model.eval()
    with torch.no_grad():
        first = float("nan") if loss is None else float(loss())
    model.train()
    run()
    return Prepared(run, (sum(p.numel() for p in model.parameters()), first))


def loss_apart(reference: tuple[int, float], output: tuple[int, float]) -> float:
    assert reference[0] == output[0], f"{reference[0]:,} parameters against {output[0]:,}"
    return abs(reference[1] - output[1])


def amount(case: Corpus) -> int:
    return sum(map(len, case.sentences()[1]))


def least(case: Corpus, precision: str, ceilings: Ceilings) -> float:
    """All products of sentences of mean length, without padding."""
    sources, targets = case.sentences()
    with torch.device("meta"):
        model = build(case.model())
    mean = [round(float(np.mean([len(s) for s in side]))) for side in (sources, targets)]
    per_token = costs.flops(model, *mean)["training"] / mean[1]
    return ceilings.least(precision, 0, per_token * amount(case))


WORK = Work(
    unit="tokens/s", cases={"": Corpus()}, amount=amount, least=least,
    ours=Side(training_precisions(), ours, retain_memory),
    peers={"tutorial": Side({"float32": "float32", "bf16": "bf16"}, tutorial)},
    error=loss_apart, error_is=LOSS,
)  # fmt: skip
