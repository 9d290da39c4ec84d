"""Training on strings of digits, and how well longer ones come out than were trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.core.runtime import Route
from manyheads.data.batching import pad
from manyheads.data.parallel import Pairs
from manyheads.generation import greedy
from manyheads.tasks.evaluation import Metrics, Outcome
from manyheads.tasks.translation.task import Batch, Translating, TranslationTask

ROOM = 10  # tokens that an output may be longer than its input
DECODED = 16_384  # source tokens that are decoded at once


class _Shifted(Sequence[Batch]):
    """The same batches, of which every row begins at a position of its own."""

    def __init__(self, batches: Sequence[Batch], room: int, seed: int, epoch: int) -> None:
        self._batches, self._room, self._seed = batches, room, (seed, epoch)

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]  # no slices
        batch = self._batches[index]
        longest = max(batch.source.shape[1], batch.read.shape[1])
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence([*self._seed, index])))
        offsets = random.integers(0, max(0, self._room - longest), size=len(batch.source), endpoint=True)
        return replace(batch, offset=torch.from_numpy(offsets))


class DigitTask(TranslationTask):
    """Translation, where a text may begin at any of `room` positions while training (Dehghani 2018, section 4.4), so
    that no position is new when longer ones are read. 0: it begins at the first, as published for the Transformer."""

    def __init__(self, *inputs: Any, room: int, **settings: Any) -> None:
        super().__init__(*inputs, **settings)
        self.room = room

    def batches(self, epoch: int) -> Sequence[Batch]:
        found = super().batches(epoch)
        return _Shifted(found, self.room, self.seed, epoch) if self.room else found


@torch.inference_mode()
def measure(model: Translating, tokenizer: Tokenizer, pairs: Pairs, route: Route) -> tuple[dict[str, float], list[str]]:
    """How good the outputs (greedy) are, and the outputs themselves.

    accuracy         of characters: those at their place, of all that were asked for
    exact_match      of whole strings
    forced_accuracy  of characters when those before are given, as tensor2tensor measures it
    ..._steps        the mean steps of positions, of a model that may halt
    """
    model.eval()
    outputs: list[str] = []
    forced, asked = 0, 0
    steps: dict[str, list[Tensor]] = {}
    rows = max(1, DECODED // max(map(len, pairs.sources)))
    for first in range(0, len(pairs), rows):
        part = pairs.subset([*range(first, min(first + rows, len(pairs)))])
        source, lengths, read, write, right = _padded(model, tokenizer, part, route)
        with route.computing():
            hidden, thoughts = model.think(source, lengths, read, right.sum(1))
            for stack, ponder in thoughts.items():
                steps.setdefault(stack, []).append(ponder.steps[ponder.real])
            logits = model.project(hidden)
            logits[..., model.config.pad] = -torch.inf  # is never written, and its logit not trained
            forced += int(((logits.argmax(-1) == write) & right).sum())
            asked += int(right.sum())
            outputs += _decoded(model, tokenizer, source, lengths)
    together = list(zip(outputs, pairs.targets, strict=True))
    values = {
        "accuracy": sum(_placed(*each) for each in together) / sum(map(len, pairs.targets)),
        "exact_match": sum(output == target for output, target in together) / len(pairs),
        "forced_accuracy": forced / asked,
        **{f"{stack}_steps": float(torch.cat(each).mean()) for stack, each in steps.items()},
    }
    return values, outputs


def _placed(output: str, target: str) -> int:
    """Characters of the target that the output has at their place."""
    return sum(a == b for a, b in zip(output, target, strict=False))


def length_metrics(found: Mapping[str, float], length: int, count: int) -> Metrics:
    """Of what `measure` found on `count` inputs of a length, what is told beside other metrics."""
    told = f"{count:,} inputs of {length} characters, greedy"
    return {f"{name}_{length}": {"value": found[name], "signature": told} for name in ("accuracy", "exact_match")}


class DigitOutcome(Outcome):
    """The quality of an output is the share of its characters that are in place."""

    unit = "accuracy"


def digit_outcome(model: Translating, tokenizer: Tokenizer, tests: Mapping[int, Pairs], route: Route) -> DigitOutcome:
    """On inputs of each length."""
    outputs: list[str] = []
    metrics: Metrics = {}
    for length, pairs in tests.items():
        found, written = measure(model, tokenizer, pairs, route)
        metrics |= length_metrics(found, length, len(pairs))
        outputs += written
    inputs = [text for pairs in tests.values() for text in pairs.sources]
    references = [text for pairs in tests.values() for text in pairs.targets]
    quality = [_placed(*each) / len(each[1]) for each in zip(outputs, references, strict=True)]
    return DigitOutcome(inputs, outputs, references, quality, metrics)


def _padded(
    model: Translating, tokenizer: Tokenizer, pairs: Pairs, route: Route
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """source (B, Ts) with lengths (B,); what the decoder reads and should write (B, Tt), and which of it is real."""
    c = model.config
    sources, targets = ([each.ids for each in tokenizer.encode_batch(side)] for side in (pairs.sources, pairs.targets))
    shifted = [[c.start, *target[:-1]] for target in targets]
    source, read, write = (torch.from_numpy(pad(rows, c.pad)).to(route.device) for rows in (sources, shifted, targets))
    return source, (source != c.pad).sum(1), read, write, write != c.pad


def _decoded(model: Translating, tokenizer: Tokenizer, source: Tensor, lengths: Tensor) -> list[str]:
    c = model.config
    limits = (lengths + ROOM).clamp(max=c.max_positions - 1)
    cache: Any = model.start(source, lengths, int(limits.max()) + 1)
    step: Any = model.step
    suppress = [token for token in {c.pad, c.start} if token != c.end]
    found = greedy(step, cache, start=c.start, end=c.end, limits=limits, suppress=suppress)
    return [tokenizer.decode(hypothesis.tokens) for hypothesis in found]
