"""Three ways of reading compared (Devlin 2018, figure 3): what do their frozen features know of a text?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import Route, prepare
from manyheads.data.cldr_tags import cldr_tagged
from manyheads.data.conll import Tagged, read_splits
from manyheads.data.pretraining import Documents, PretrainingData, Rules, Special
from manyheads.data.store import fingerprint
from manyheads.models.directions import DIRECTIONS, Direction, DirectionalConfig, DirectionalEncoder
from manyheads.recipes.run import Run, carry_out, identity, plan
from manyheads.tasks.directions.task import ReadingTask, probe
from manyheads.tasks.evaluation import Metrics
from manyheads.tasks.masked_words.run import wordpiece
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import Summary
from manyheads.training.record import write_result
from manyheads.training.run_directory import run_status


@dataclass(frozen=True)
class ReadingConfig:
    """What the comparison is made of.

    data          a directory of CoNLL columns (see `data/conll.py`): the readers are trained on its words and probed on
                  its tags; None: the embedded phrases of dates, amounts and names in `locale`, `size` of them
    model         overrides fields of the readers
    batch_tokens  padded tokens of a micro-batch: in small ones too few words are masked to learn from
    training      of each reader
    """

    data: str | None = None
    locale: str = "en"
    size: int = 8000
    model: dict[str, Any] = field(default_factory=dict)
    vocabulary: int = 1000
    batch_tokens: int = 1024
    threads: int | None = None
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            steps=2000, optimiser="adamw", schedule="cosine", learning_rate=2e-3, warmup=150, betas=(0.9, 0.99),
            eps=1e-8, weight_decay=0.01, clip=1.0, validate_every=1000, checkpoint_every=500, log_every=50,
        )
    )  # fmt: skip


DEFAULT = ReadingConfig()


def reading(config: ReadingConfig = DEFAULT, *, run: Run) -> str | dict[str, Any] | None:
    """manyheads train reading [data=DIR] [training.steps=N]

    The same texts are read in both directions at once (masked words), from left to right (the next word), and by two
    LSTMs; then a linear classifier tags each word from its frozen features. Each reader is resumable in a directory of
    its own below --out. About eight minutes on one core.
    """
    if run.init is not None:
        raise ValueError("reading trains three readers from scratch: leave --init out")
    if run.dry_run:
        with torch.device("meta"):
            return plan(
                run,
                config,
                DirectionalEncoder(DirectionalConfig(config.vocabulary, **config.model)),
                config.batch_tokens,
            )
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    corpus = _read(config, run)
    rows: dict[str, dict[str, Any]] = {}
    for name in DIRECTIONS:
        result = _train(name, config, run, corpus, route)
        if result is None:  # stopped by --max-minutes: the same command goes on
            return None
        rows[name] = result
    model = directory.load(run.out / "bidirectional").model
    alone = probe(model, corpus.tokenizer, corpus.train, corpus.test, route, context=False)
    return _compare(config, run, rows, alone, corpus.described)


class _Corpus(NamedTuple):
    """What readers and probes are trained on, and what the probes are tested on."""

    train: Tagged
    test: Tagged
    tokenizer: Tokenizer
    described: dict[str, Any]


def _read(config: ReadingConfig, run: Run) -> _Corpus:
    if config.data is None:
        corpus = cldr_tagged(config.locale, seed=config.training.seed, size=config.size)
        train, test = corpus.train, corpus.test
    else:
        # on the validation data: the test data stay unseen
        train, test, *_ = read_splits(config.data, skip_bad_lines=run.skip_bad_lines)
    described = {
        "data": config.data,
        "locale": None if config.data else config.locale,
        "fingerprints": {"train": fingerprint(train.texts), "test": fingerprint(test.texts)},
    }
    texts = (" ".join(words) for words in train.words)
    return _Corpus(train, test, wordpiece(texts, config.vocabulary, lowercase=False), described)


def _train(name: Direction, config: ReadingConfig, run: Run, corpus: _Corpus, route: Route) -> dict[str, Any] | None:
    """One reader in a directory of its own, and what a probe finds in its features."""
    run = replace(run, out=run.out / name, resume=run_status(run.out / name) != "none", whole=run)
    seed, vocabulary = config.training.seed, corpus.tokenizer.get_vocab_size()
    torch.manual_seed(seed)
    model = DirectionalEncoder(DirectionalConfig(vocabulary, name, **config.model))
    longest = model.config.max_positions
    rules = Rules(length=longest, next_sentence=False, short=0.0)

    def examples(tagged: Tagged) -> PretrainingData:
        documents = Documents.of([[" ".join(words)] for words in tagged.words], corpus.tokenizer)
        return PretrainingData(documents, rules, Special.of(corpus.tokenizer), vocabulary, seed=seed)

    task = ReadingTask(
        model, corpus.tokenizer, examples(corpus.train), examples(corpus.test), route=route,
        batch_tokens=config.batch_tokens, seed=seed,
    )  # fmt: skip
    settings = {**identity(config, run, corpus.described["fingerprints"]), "reading": name}

    def flops(summary: Summary) -> float:
        length = round(float(task.train.epoch(0).lengths.mean()))
        per_token = costs.flops(model, length)["training"] / length
        return per_token * task.tokens_per_prediction * summary.tokens

    def evaluate() -> Metrics:
        trained = directory.load(run.out).model
        return probe(trained, corpus.tokenizer, corpus.train, corpus.test, route, context=True)

    return carry_out(
        run, task, config.training, route=route, settings=settings, data=corpus.described, evaluate=evaluate,
        flops=flops,
    )  # fmt: skip


def _compare(
    config: ReadingConfig, run: Run, rows: dict[str, dict[str, Any]], alone: Metrics, described: dict[str, Any]
) -> str:
    """The table of all, which is printed, and result.json. The metrics of record are the bidirectional reader's."""
    lines = [f"{'features of':16} {'parameters':>12} {'loss':>8} {'accuracy':>9} {'entity F1':>10}"]
    lines.append(f"{'words alone':16} {'':12} {'':8} {_scores(alone)}")
    for name, row in rows.items():
        metrics = row["metrics"]
        lines.append(f"{name:16} {row['parameters']:12,} {metrics['loss']['value']:8.3f} {_scores(metrics)}")
    kept = {name: {metric: each["value"] for metric, each in row["metrics"].items()} for name, row in rows.items()}
    flops = [row["flops"] for row in rows.values()]
    write_result(
        run.out, recipe=run.recipe, overrides=run.overrides, data=described, metrics=rows["bidirectional"]["metrics"],
        wall_seconds=sum(row["wall_seconds"] for row in rows.values()), flops=sum(flops),
        parameters=rows["bidirectional"]["parameters"], seed=config.training.seed,
        readings={**kept, "words_alone": {metric: each["value"] for metric, each in alone.items()}},
    )  # fmt: skip
    return "\n".join(lines)


def _scores(metrics: Metrics) -> str:
    return f"{metrics['accuracy']['value']:9.4f} {metrics['entity_f1']['value']:10.4f}"
