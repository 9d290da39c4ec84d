"""Training task on strings of digits, and metrics for strings that are longer than those in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy, pad, part_of
from manyheads.data.readers.parallel import Pairs
from manyheads.inference import CompiledModel
from manyheads.models.encoder_decoder import TranslationModel
from manyheads.models.recurrence import Halting, states_and_halting
from manyheads.tasks.evaluation import EvaluationResult
from manyheads.tasks.translation.decoding import decode_batch
from manyheads.tasks.translation.objective import Batch, TranslationObjective
from manyheads.training.distributed_map import distributed_map
from manyheads.training.record import Metrics

MAX_EXTRA_TOKENS = 10  # maximum number of tokens by which an output may be longer than its input
MAX_BATCH_TOKENS = 16_384  # maximum number of source tokens that are decoded in one batch


class _OffsetBatches(Sequence[Batch]):
    """Batches of translation pairs in which the position indices of every row start at a random number."""

    def __init__(self, batches: Lazy[Batch], positions: int, seed: int, epoch: int) -> None:
        self._batches, self._positions, self._seed = batches, positions, (seed, epoch)

    def __len__(self) -> int:
        return len(self._batches)

    def part(self, index: int, rank: int, world: int) -> tuple[Batch, bool]:
        batch, counted = self._batches.part(index, rank, world)
        offset = self[index].offset
        assert offset is not None
        rows = part_of(len(offset), rank, world)
        return replace(batch, offset=offset[rows if counted else [0]]), counted

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]  # no slices
        batch = self._batches[index]
        longest = max(batch.source.shape[1], batch.read.shape[1])
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence([*self._seed, index])))
        offsets = random.integers(0, max(0, self._positions - longest), size=len(batch.source), endpoint=True)
        return replace(batch, offset=torch.from_numpy(offsets))


@dataclass(eq=False)
class DigitTask(TranslationObjective):
    """Translation task where the position indices of training texts start at a random number.

    Source: Dehghani 2018, section 4.4.

    With random starts, all positions of the longer test texts occur in training.

    start_positions  number of possible start positions; 0: every text starts at the first position, as published for
                     the Transformer
    """

    start_positions: int = field(default=0, kw_only=True)

    def batches(self, epoch: int) -> Lazy[Batch] | _OffsetBatches:  # type: ignore[override]
        batches = super().batches(epoch)
        return _OffsetBatches(batches, self.start_positions, self.seed, epoch) if self.start_positions else batches


@torch.inference_mode()
def measure(
    compiled: CompiledModel[TranslationModel], tokenizer: Tokenizer, pairs: Pairs
) -> tuple[dict[str, float], list[str]]:
    """Return the metrics of greedy decoding, and the decoded outputs.

    accuracy         fraction of the target characters that the output has at the same position
    exact_match      fraction of outputs that are completely right
    forced_accuracy  fraction of target characters that the model predicts from the true characters before them, as in
                     tensor2tensor
    ..._steps        mean number of steps that a model with adaptive halting takes for a token
    """
    model, compute = compiled.module.eval(), compiled.compute
    rows = max(1, MAX_BATCH_TOKENS // max(map(len, pairs.sources)))

    def run_batch(first: int) -> tuple[list[str], int, int, dict[str, Tensor]]:
        part = pairs.subset([*range(first, min(first + rows, len(pairs)))])
        source, lengths, inputs, write, right = _pad_batch(model, tokenizer, part, compute)
        with compute.autocast():
            given = (source, lengths, inputs, right.sum(1)) if isinstance(model, Halting) else (source, lengths, inputs)
            hidden, halting = states_and_halting(model)(*given)
            steps = {stack: ponder.steps[ponder.real].cpu() for stack, ponder in halting.items()}
            logits = model.project(hidden)
            # The model never generates padding tokens, and the logit of the padding token is not trained.
            logits[..., model.config.pad] = -torch.inf
            forced = int(((logits.argmax(-1) == write) & right).sum())
            hypotheses = decode_batch(compiled, source, lengths, extra_tokens=MAX_EXTRA_TOKENS)
            outputs = [tokenizer.decode(best.tokens) for (best,) in hypotheses]
            return outputs, forced, int(right.sum()), steps

    decoded, forced, characters, steps = zip(*distributed_map(range(0, len(pairs), rows), run_batch), strict=True)
    outputs = [output for part in decoded for output in part]
    answers = list(zip(outputs, pairs.targets, strict=True))
    values = {
        "accuracy": sum(_count_right(output, target) for output, target in answers) / sum(map(len, pairs.targets)),
        "exact_match": sum(output == target for output, target in answers) / len(pairs),
        "forced_accuracy": sum(forced) / sum(characters),
        **{f"{stack}_steps": float(torch.cat([part[stack] for part in steps]).mean()) for stack in steps[0]},
    }
    return values, outputs


def _count_right(output: str, target: str) -> int:
    """Return the number of positions at which the model's output has the same character as the right output."""
    return sum(a == b for a, b in zip(output, target, strict=False))


def length_metrics(values: Mapping[str, float], length: int, count: int) -> Metrics:
    """Return accuracy and exact match for `count` test inputs of one length. The metric names include this length."""
    signature = f"{count:,} inputs of {length} characters, greedy"
    return {f"{name}_{length}": {"value": values[name], "signature": signature} for name in ("accuracy", "exact_match")}


def digit_result(
    model: CompiledModel[TranslationModel], tokenizer: Tokenizer, tests: Mapping[int, Pairs]
) -> EvaluationResult:
    """Evaluate the model on test inputs of each length.

    The quality score of an output is the fraction of its characters that are right at their position.
    """
    outputs: list[str] = []
    metrics: Metrics = {}
    for length, pairs in tests.items():
        values, texts = measure(model, tokenizer, pairs)
        metrics |= length_metrics(values, length, len(pairs))
        outputs += texts
    inputs = [text for pairs in tests.values() for text in pairs.sources]
    references = [text for pairs in tests.values() for text in pairs.targets]
    quality = [_count_right(output, target) / len(target) for output, target in zip(outputs, references, strict=True)]
    return EvaluationResult(inputs, outputs, references, quality, metrics, unit="accuracy")


def _pad_batch(
    model: TranslationModel, tokenizer: Tokenizer, pairs: Pairs, compute: ComputeConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return one padded batch of the given pairs.

    The batch consists of source tokens (B, Ts) with lengths (B,), the decoder's input and target tokens (B, Tt), and a
    mask (B, Tt) that is false at padding in the targets.
    """
    c = model.config
    sources, targets = ([text.ids for text in tokenizer.encode_batch(side)] for side in (pairs.sources, pairs.targets))
    shifted = [[c.start, *target[:-1]] for target in targets]
    source, inputs, write = (
        torch.from_numpy(pad(rows, c.pad)).to(compute.device) for rows in (sources, shifted, targets)
    )
    return source, (source != c.pad).sum(1), inputs, write, write != c.pad
