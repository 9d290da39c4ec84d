"""Answering questions with a span of a text: BERT fine-tuned on data as SQuAD's (Devlin 2018, sections 4.2 and 4.3)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import prepare
from manyheads.data.report import Lengths
from manyheads.data.splits import SplitData
from manyheads.data.squad import Questions, read_splits
from manyheads.data.store import fingerprint
from manyheads.models.bert import Bert
from manyheads.models.presets import build, preset
from manyheads.recipes.fine_tuning import starting_from, warmed_up
from manyheads.recipes.run import Run, carry_out, identity, plan, tell_splits
from manyheads.tasks.answering.predictor import Answerer
from manyheads.tasks.answering.task import AnsweringTask
from manyheads.tasks.evaluation import Metrics
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import Summary
from manyheads.training.run_directory import claim


@dataclass(frozen=True)
class AnsweringConfig:
    """What a run is made of.

    data          a directory with train, dev and test files as SQuAD's, or one file (see `data/squad.py`)
    preset        one of bert/, for the estimates of a dry run; `model` overrides settings of the model to start
                  from that do not change its weights
    batch_tokens  padded tokens of a micro-batch
    max_length    tokens of a passage: a question, of which max_query are read, and a window of its context; windows
                  begin `stride` tokens one after the other
    scored        which data are answered and scored at the end
    """

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    preset: str = "base-uncased"
    model: dict[str, Any] = field(default_factory=dict)
    batch_tokens: int = 3072
    max_length: int = 384
    stride: int = 128
    max_query: int = 64
    scored: Literal["test", "validation"] = "test"
    threads: int | None = None
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=3, optimiser="adamw", schedule="linear", learning_rate=5e-5, warmup=100, betas=(0.9, 0.999),
            eps=1e-6, weight_decay=0.01, clip=1.0, accumulate=4, log_every=20,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not self.max_query + 8 <= self.max_length <= self.batch_tokens:
            raise ValueError(
                f"max_length is {self.max_length}: expected more than max_query, {self.max_query}, and at most "
                f"batch_tokens, {self.batch_tokens}"
            )
        if not 0 < self.stride <= self.max_length:
            raise ValueError(f"stride is {self.stride}: expected 1 to max_length, {self.max_length}")


def question_answering(config: AnsweringConfig = AnsweringConfig(), *, run: Run) -> dict[str, Any] | None:
    """manyheads train question-answering data=DIR --init MODEL

    The fine-tuning of Devlin 2018, section 4.2 (SQuAD 1.1's dev data with BERT base: F1 88.5, exact match 80.8), three
    epochs with linear decay. Questions without an answer are those of SQuAD 2.0.
    """
    return _answer(config, run, "train and dev or test files as SQuAD's JSON")


XQUAD = AnsweringConfig(
    batch_tokens=2048,
    training=TrainingConfig(
        epochs=4, optimiser="adamw", schedule="linear", learning_rate=1e-4, warmup=30, betas=(0.9, 0.999), eps=1e-6,
        weight_decay=0.01, clip=1.0, log_every=10,
    ),
)  # fmt: skip


def xquad(config: AnsweringConfig = XQUAD, *, run: Run) -> dict[str, Any] | None:
    """manyheads train xquad data=DIR --init MODEL

    The English part of XQuAD (Artetxe 2020), 1,190 questions from SQuAD's dev data, split by article: far less than a
    reader needs, so this shows how little can be learnt from a thousand questions, and is no measure of the model.
    """
    return _answer(config, run, "train.json and test.json of XQuAD")


def planned_model(config: AnsweringConfig) -> Bert:
    """The model, without memory, where it starts from a published one."""
    with torch.device("meta"):
        return build(preset(config.preset, "bert", **{"head": "question", **config.model}))


def _answer(config: AnsweringConfig, run: Run, expected: str) -> dict[str, Any] | None:
    """Questions -> report -> model -> training -> test -> result.json."""
    if run.dry_run:
        model = planned_model(config) if run.init is None else starting_from(run, "question")[0]
        return plan(run, config, model, config.batch_tokens)
    if config.data is None:
        raise ValueError(f"{run.recipe} needs its data: data=PATH, a directory with {expected}")
    if run.init is None:
        raise ValueError(f"{run.recipe} fine-tunes: name the model to start from with --init MODEL, a BERT directory")
    claim(run.out, resume=run.resume)
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    corpora = _read(config, run)
    _report(corpora)
    torch.manual_seed(config.training.seed)
    model, tokenizer = starting_from(run, "question")
    reading = {
        "max_length": min(config.max_length, model.config.max_positions), "stride": config.stride,
        "max_query": config.max_query,
    }  # fmt: skip
    task = AnsweringTask(
        model, tokenizer, corpora.train, corpora.validation, route=route, batch_tokens=config.batch_tokens,
        seed=config.training.seed, **reading,
    )  # fmt: skip
    training = warmed_up(config.training, run, len(task.batches(0)))
    described = _described(run, corpora)
    settings = identity(config, run, described["fingerprints"])

    def evaluate() -> Metrics:
        held = corpora.validation if config.scored == "validation" else corpora.test
        return {} if held is None else Answerer(directory.load(run.out), route, reading).evaluate(held).metrics

    def flops(summary: Summary) -> float:
        return costs.flops(model, task.mean_length)["training"] * summary.tokens

    return carry_out(
        run, task, training, route=route, settings=settings, data=described, evaluate=evaluate, flops=flops,
        reading=reading,
    )  # fmt: skip


def _read(config: AnsweringConfig, run: Run) -> SplitData[Questions]:
    assert config.data is not None
    corpora = read_splits(
        config.data, validation=config.validation, test=config.test, skip_bad_lines=run.skip_bad_lines
    )
    tell_splits(corpora, "questions")
    return corpora


def _described(run: Run, corpora: SplitData[Questions]) -> dict[str, Any]:
    """For result.json: enough to find the test data again, and to see whether they are the same."""
    return {
        "paths": {name: str(questions.file) for name, questions in corpora.known.items()},
        "test": list(corpora.test_paths),
        "skipped": run.skip_bad_lines,
        "fingerprints": {name: fingerprint(questions.texts)[:16] for name, questions in corpora.known.items()},
        "questions": {name: len(questions) for name, questions in corpora.known.items()},
    }


def _report(corpora: SplitData[Questions]) -> None:
    """What the data are like, on stderr."""
    trained = {item.article for item in corpora.train.items}
    for name, questions in corpora.known.items():
        items = questions.items
        words = {
            what: Lengths.of([len(getattr(item, what).split()) for item in items]) for what in ("question", "context")
        }
        told = f"{name}: {len(items):,} questions on {questions.articles:,} articles"
        told += f", {questions.impossible:,} without an answer" * bool(questions.impossible)
        told += "".join(f"; words of a {what} (mean / 99% / longest) {each}" for what, each in words.items())
        print(told, file=sys.stderr)
        shared = len({item.article for item in items} & trained) if name != "train" else 0
        if shared:
            print(f"warning: {shared:,} articles of the {name} data are in the training data", file=sys.stderr)
