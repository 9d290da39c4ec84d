"""Training throughput: the blog model here against the tutorial's own loop.

    python -m bench.translation_training DATA [--source de --target en] [--repeats 7] [--out FILE.json]

The peer is what the PyTorch translation tutorial does: `torch.nn.Transformer`, batches of 128 sentences in random
order, padded to the longest, Adam, the logits of the whole batch. Ours is the same model (3 + 3 layers, 512 wide,
nothing tied) with the package's batches of like lengths, loss, attention, dropout and fused Adam. Both see the same
word ids, in the same precision, a few batches each in turn; what is compared are real target tokens a second, with
forward, backward and update.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import tell
from manyheads.analysis import costs
from manyheads.core.runtime import Route, prepare
from manyheads.data.batching import pad, token_batches
from manyheads.data.parallel import read_parallel
from manyheads.models.presets import preset
from manyheads.models.transformer import Transformer
from manyheads.training.loss import smoothed_cross_entropy
from manyheads.training.record import hardware

PAD, START, END, UNKNOWN = 0, 1, 2, 3
SENTENCES = 128


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


def word_ids(lines: Sequence[str]) -> tuple[list[list[int]], int]:
    """Words and punctuation as ids, every sentence with its end, and how many ids there are."""
    split = [re.findall(r"\w+|[^\w\s]", line) for line in lines]
    ids = {word: i for i, word in enumerate(Counter(w for words in split for w in words), UNKNOWN + 1)}
    return [[*(ids[w] for w in words), END] for words in split], len(ids) + UNKNOWN + 1


def measure(data: str, source: str, target: str, repeats: int, batches: int) -> dict[str, Any]:
    route = prepare()
    with route.settings():
        return _measured(route, data, source, target, repeats, batches)


def _measured(route: Route, data: str, source: str, target: str, repeats: int, batches: int) -> dict[str, Any]:
    pairs = read_parallel(data, source, target)
    (sources, source_vocab), (targets, target_vocab) = word_ids(pairs.sources), word_ids(pairs.targets)
    lengths = [len(s) for s in sources], [len(t) for t in targets]
    budget = int(SENTENCES * np.mean(lengths[1]))
    bucketed = token_batches(*lengths, budget, seed=0, epoch=0)
    shuffled = np.array_split(np.random.default_rng(0).permutation(len(sources)), len(sources) // SENTENCES)

    peer = Tutorial(source_vocab, target_vocab)
    ours = Transformer(
        preset("transformer/blog", source_vocab=source_vocab, target_vocab=target_vocab, pad=PAD, end=END, start=START)
    )
    assert sum(p.numel() for p in peer.parameters()) == sum(p.numel() for p in ours.parameters())
    peer_adam = torch.optim.Adam(peer.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    our_adam = torch.optim.Adam(ours.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def tensors(rows: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        chosen, wanted = [sources[i] for i in rows], [targets[i] for i in rows]
        shifted = [[START, *t[:-1]] for t in wanted]
        return (
            torch.from_numpy(pad(chosen, PAD)),
            torch.tensor([len(s) for s in chosen]),
            torch.from_numpy(pad(shifted, PAD)),
            torch.from_numpy(pad(wanted, PAD)),
        )

    def peer_step(rows: np.ndarray[Any, Any]) -> int:
        s, _, given, write = tensors(rows)
        logits = peer(s, given)
        F.cross_entropy(logits.flatten(0, 1), write.flatten(), ignore_index=PAD).backward()
        peer_adam.step()
        peer_adam.zero_grad()
        return int((write != PAD).sum())

    def our_step(rows: np.ndarray[Any, Any]) -> int:
        s, source_lengths, given, write = tensors(rows)
        tokens = int((write != PAD).sum())
        hidden = ours.hidden(s, source_lengths, given)
        loss = smoothed_cross_entropy(
            hidden.flatten(0, 1), ours.output_weight, ours.output_bias, write.flatten(), smoothing=0.0, pad=PAD
        )
        (loss / tokens).backward()
        our_adam.step()
        our_adam.zero_grad()
        return tokens

    def rate(step: Callable[[np.ndarray[Any, Any]], int], rows: Sequence[np.ndarray[Any, Any]]) -> float:
        began = time.perf_counter()
        return sum(map(step, rows)) / (time.perf_counter() - began)

    rates: dict[str, list[float]] = {"peer": [], "ours": []}
    for repeat in range(repeats + 1):  # the first is a warm-up
        at = repeat * batches
        for name, step, order in (("peer", peer_step, shuffled), ("ours", our_step, bucketed)):
            measured = rate(step, [order[i % len(order)] for i in range(at, at + batches)])
            if repeat:
                rates[name].append(measured)
    ratios = [a / b for a, b in zip(rates["ours"], rates["peer"], strict=True)]
    mean = [round(float(np.mean(side))) for side in lengths]
    flops = costs.flops(ours, *mean)["training"] / mean[1]
    products = route.products_per_second()
    return {
        "bench": "translation-training", "model": "transformer/blog", "precision": route.precision,
        "pairs": len(pairs), "vocabularies": [source_vocab, target_vocab],
        "target_tokens_per_second": {name: _spread(values) for name, values in rates.items()},
        "ratio": _spread(ratios),
        "limit": {
            "products_gflop_per_second": round(products / 1e9, 1),
            "target_tokens_per_second": round(products / flops),
            "note": "all matrix products at the rate of a 1024-wide one, nothing else",
        },
        "hardware": hardware(), "route": route.describe(),
    }  # fmt: skip


def _spread(values: Sequence[float]) -> dict[str, Any]:
    kept = [round(v, 3) for v in values]
    return {"median": statistics.median(kept), "min": min(kept), "max": max(kept), "runs": len(kept)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="parallel corpus, such as multi30k/train")
    parser.add_argument("--source", default="de")
    parser.add_argument("--target", default="en")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", type=int, default=4, help="of each in turn")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tell(measure(options.data, options.source, options.target, options.repeats, options.batches), options.out)


if __name__ == "__main__":
    main()
