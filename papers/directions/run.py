"""Training of three encoders that read a text in different directions, and comparison of their frozen features.

The encoders are bidirectional (as BERT), left-to-right (as GPT), and two LSTMs with opposite directions (as ELMo). The
experiment follows Devlin 2018, figure 3.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.conll import Tagged
from manyheads.data.readers.splits import SplitData, hold_out
from manyheads.data.sources.corpora import TaggedSource
from manyheads.data.text.pretraining import PretrainingData, Rules, Special
from manyheads.data.text.tokenized_documents import TokenizedDocuments
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.directions import DIRECTIONS, Direction, DirectionalConfig, DirectionalEncoder
from manyheads.models.presets import make_config
from manyheads.runs.checks import log_warnings
from manyheads.runs.estimate import Plan, estimate
from manyheads.runs.options import Run
from manyheads.runs.run import carry_out, log_splits
from manyheads.runs.task import Job, Task
from manyheads.training.distributed import distributed_context
from manyheads.training.record import Metrics, write_result
from papers.directions.recipes import DirectionsConfig
from papers.directions.task import DirectionsTask, probe


def train(config: DirectionsConfig, run: Run) -> str | dict[str, Any] | None:
    """Train the three encoders one after the other, each in its own directory, and return a table of their results."""
    source = _HashedSource(
        data=config.data, skip_bad_lines=run.skip_bad_lines, seed=config.training.seed, locale=config.locale,
        size=config.size,
    )  # fmt: skip
    plan = _plan(config, DIRECTIONS[0])
    if run.dry_run:
        if run.reads:
            source.read()  # reports faults of the data
        return estimate(run.recipe, config, plan, run.compute(config.threads))
    start_time = time.monotonic()
    splits = source.read()
    log_splits(source, splits)
    # The comparison uses the validation data. The user's test data remain unused.
    evaluated = splits.validation if config.data else splits.known["test"]
    splits = SplitData(splits.train, evaluated, evaluated)
    texts = (" ".join(words) for words in splits.train.words)
    with log_warnings():
        tokenizer = train_wordpiece(texts, config.vocabulary, lowercase=False)
    corpus = _Corpus(splits, tokenizer, source.describe(splits))
    results: dict[str, dict[str, Any]] = {}
    for direction in DIRECTIONS:
        result = carry_out(Reading(config, run.part(direction, start_time), direction, corpus))
        # The run has reached the user's limit --max-minutes. If the user repeats the command, the run resumes here.
        if result is None:
            return None
        results[direction] = result
    model, compute = directory.load(run.out / "bidirectional").model, run.compute(config.threads)
    with compute.settings():
        without_context = probe(model, tokenizer, splits.train, splits.validation, compute, context=False)
        return _compare(config, run, results, without_context, corpus.description)


@dataclass(frozen=True, kw_only=True)
class _HashedSource(TaggedSource):
    """Data source of tagged sentences that holds out about a twentieth of the sentences, by their hashes."""

    def hold_out(self, train: Tagged) -> tuple[Tagged, Tagged]:
        keys = [" ".join(words) for words in train.words]
        return hold_out(train, keys, train.tags, fraction=0.05, by_hash=True, what="sentence")


@dataclass(frozen=True)
class _Corpus:
    """Corpus on which the three encoders are trained and their features are evaluated.

    The files of the corpus are read only once, for all three encoders. A linear classifier on the features of each
    encoder is evaluated on the validation data. The user's test data remain unused.
    """

    unit: ClassVar[str] = "sentences"

    splits: SplitData[Tagged]
    tokenizer: Tokenizer
    description: dict[str, Any]

    def read(self) -> SplitData[Tagged]:
        return self.splits

    def summary_lines(self, splits: SplitData[Tagged]) -> list[str]:
        """Return no description of the corpus. The run logs the description once, and not again for each encoder."""
        return []

    def report(self, splits: SplitData[Tagged]) -> str:
        return f"{len(splits.train):,} training sentences, {len(splits.validation):,} sentences for the probes"

    def describe(self, splits: SplitData[Tagged]) -> dict[str, Any]:
        return self.description


def _plan(config: DirectionsConfig, direction: Direction) -> Plan:
    with torch.device("meta"):
        return Plan(_encoder(config, config.vocabulary, direction), config.batch_tokens)


def _encoder(config: DirectionsConfig, vocabulary: int, direction: Direction, pad: int = 0) -> DirectionalEncoder:
    decided = {"vocab": vocabulary, "reading": direction, "pad": pad}
    return DirectionalEncoder(make_config(DirectionalConfig, config.model, decided))


class Reading(Task[DirectionsConfig, Tagged]):
    """Task of one encoder, in its own directory.

    The scores are the tagging metrics of a linear classifier on the frozen features of the encoder.
    """

    def __init__(self, config: DirectionsConfig, run: Run, direction: Direction, corpus: _Corpus) -> None:
        super().__init__(config, run)
        self._direction, self._corpus = direction, corpus

    def plan(self) -> Plan:
        return _plan(self.config, self._direction)

    def data(self) -> _Corpus:
        return self._corpus

    def build(self, splits: SplitData[Tagged], compute: ComputeConfig) -> Job:
        config, tokenizer = self.config, self._corpus.tokenizer
        seed, vocabulary, pad = config.training.seed, tokenizer.get_vocab_size(), tokenizer.token_to_id("[PAD]")
        assert pad is not None
        model = _encoder(config, vocabulary, self._direction, pad)
        rules = Rules(length=model.config.max_positions, next_sentence=False, short=0.0)

        def examples(tagged: Tagged) -> PretrainingData:
            documents = TokenizedDocuments.of([[" ".join(words)] for words in tagged.words], tokenizer)
            return PretrainingData(documents, rules, Special.of(tokenizer), vocabulary, seed=seed)

        objective = DirectionsTask(
            model, tokenizer, examples(splits.train), examples(splits.validation), compute=compute,
            batch_tokens=config.batch_tokens, seed=seed,
        )  # fmt: skip
        length = round(float(objective.train.epoch(0).lengths.mean()))
        encoder = costs.training_flops(model, length) / length
        word_parameters = 2 * (model.transforms[0].weight.numel() + model.embedding.weight.numel())  # type: ignore[operator]
        flops = encoder * objective.tokens_per_prediction + costs.TRAINING_PASSES * word_parameters
        return Job(model, config.training, objective, flops=flops, identity={"reading": self._direction})

    def score(self, held: Tagged, compute: ComputeConfig) -> Metrics:
        model, train = directory.load(self.run.out).model, self._corpus.splits.train
        return probe(model, self._corpus.tokenizer, train, held, compute, context=True)


def _compare(
    config: DirectionsConfig, run: Run, results: dict[str, dict[str, Any]], without_context: Metrics,
    description: dict[str, Any],
) -> str:  # fmt: skip
    """Write result.json and return the table of results of the three encoders.

    The metrics in result.json are those of the bidirectional encoder.
    """
    lines = [f"{'features of':16} {'parameters':>12} {'loss':>8} {'accuracy':>9} {'entity F1':>10}"]
    lines.append(f"{'words alone':16} {'':12} {'':8} {_scores(without_context)}")
    for direction, result in results.items():
        metrics = result["metrics"]
        lines.append(f"{direction:16} {result['parameters']:12,} {metrics['loss']['value']:8.3f} {_scores(metrics)}")
    values = {
        name: {metric: score["value"] for metric, score in metrics.items()}
        for name, metrics in [
            *((direction, result["metrics"]) for direction, result in results.items()),
            ("words_alone", without_context),
        ]
    }
    if distributed_context().first:
        write_result(
            run.out, recipe=run.recipe, overrides=run.overrides, data=description,
            metrics=results["bidirectional"]["metrics"],
            wall_seconds=sum(result["wall_seconds"] for result in results.values()),
            flops=sum(result["flops"] for result in results.values()),
            parameters=results["bidirectional"]["parameters"], seed=config.training.seed, readings=values,
        )  # fmt: skip
    return "\n".join(lines)


def _scores(metrics: Metrics) -> str:
    return f"{metrics['accuracy']['value']:9.4f} {metrics['entity_f1']['value']:10.4f}"
