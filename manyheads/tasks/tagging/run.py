"""Tagging the words of a text with BERT's encoder: trained from scratch, or fine-tuned (Devlin 2018, section 5.3)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import prepare
from manyheads.data.cldr_tags import cldr_tagged
from manyheads.data.conll import Tagged, read_splits
from manyheads.data.splits import SplitData
from manyheads.data.store import fingerprint
from manyheads.data.tag_report import tag_report
from manyheads.data.tokenizers import train_wordpiece
from manyheads.models.bert import Bert
from manyheads.models.presets import build, preset
from manyheads.recipes.fine_tuning import Tuned, reading_rate, warmed_up, with_reader
from manyheads.recipes.run import Run, carry_out, identity, plan, tell_splits, told_warnings
from manyheads.tasks.evaluation import Metrics
from manyheads.tasks.tagging.predictor import Tagger
from manyheads.tasks.tagging.task import TaggingTask
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import Summary
from manyheads.training.run_directory import claim

ENTITIES = ("O", *(f"{begins}-{kind}" for kind in ("LOC", "MISC", "ORG", "PER") for begins in "BI"))  # of CoNLL-2003


@dataclass(frozen=True)
class TaggingConfig:
    """What a tagging run is made of.

    data          a directory with train, val and test files of CoNLL columns, or one file (see `data/conll.py`);
                  None: the embedded corpus in `locale`, of `size` training phrases
    preset        of bert/, where the run does not start from another model; `model` overrides its fields
    vocabulary    sub-tokens, and whether they are lowercased; given by the model to start from
    batch_tokens  padded tokens of a micro-batch
    max_length    tokens of a window: longer sentences are read in several
    tuned         of the model to start from: "all"; or nothing, and a BiLSTM reads its "last" layer, or its "last-four"
    scored        which data are tagged and scored at the end
    """

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    locale: str = "en"
    size: int = 8000
    preset: str = "tiny"
    model: dict[str, Any] = field(default_factory=dict)
    vocabulary: int = 2000
    lowercase: bool = False
    batch_tokens: int = 1024
    max_length: int = 128
    tuned: Tuned = "all"
    scored: Literal["test", "validation"] = "test"
    threads: int | None = None
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(steps=1000, width=128))

    def __post_init__(self) -> None:
        if not 8 <= self.max_length <= self.batch_tokens:
            raise ValueError(f"max_length is {self.max_length}: expected 8 to batch_tokens, {self.batch_tokens}")


EMBEDDED = TaggingConfig(
    model={"max_positions": 256, "dropout": 0.0, "attention_dropout": 0.0},  # nothing is noisy and nothing repeats
    training=TrainingConfig(
        epochs=8, optimiser="adamw", schedule="linear", learning_rate=2e-3, warmup=100, betas=(0.9, 0.999), eps=1e-6,
        weight_decay=0.01, clip=1.0, log_every=20,
    ),
)  # fmt: skip

CONLL2003 = TaggingConfig(
    preset="base-cased",
    batch_tokens=512,  # about 28 sentences, the paper's 32
    training=TrainingConfig(
        epochs=3, optimiser="adamw", schedule="linear", learning_rate=5e-5, warmup=170, betas=(0.9, 0.999), eps=1e-6,
        weight_decay=0.01, clip=1.0, log_every=20,
    ),
)  # fmt: skip


def tagging(config: TaggingConfig = EMBEDDED, *, run: Run) -> dict[str, Any] | None:
    """manyheads train tagging [locale=en] [data=DIR] [--init MODEL]

    Without data, phrases of dates, amounts and names from Unicode CLDR, with tags of their parts; what is tested are
    combinations that training has not shown. About two minutes on two cores. With --init it has the
    optimiser and schedule of `conll2003`.
    """
    if run.init:
        given = [key.removeprefix("training.") for key in run.overrides if key.startswith("training.")]
        training = replace(CONLL2003.training, **{name: getattr(config.training, name) for name in given})
        config = replace(config, training=training)
    return _tag(config, run)


def conll2003(config: TaggingConfig = CONLL2003, *, run: Run) -> dict[str, Any] | None:
    """manyheads train conll2003 data=DIR --init MODEL [tuned=last-four]

    The fine-tuning of Devlin 2018, section 5.3 (entity F1 92.4 on the test data with BERT base, which also read the
    text around each sentence; here a sentence is read by itself): linear decay, three epochs. `tuned` is the paper's
    ablation: a BiLSTM reads what the frozen BERT says (on validation 94.9 from its last layer, 96.1 from four).
    """
    if not run.dry_run:
        if config.data is None:
            raise ValueError(
                "conll2003 needs its data: data=DIR with train, valid and test files of CoNLL-2003 columns"
            )
        if run.init is None:
            raise ValueError("conll2003 fine-tunes: name the model to start from with --init MODEL, a BERT directory")
    return _tag(config, run)


def planned_model(config: TaggingConfig) -> Bert:
    """The model, without memory, as it will be if the text yields the whole vocabulary that is asked for."""
    with torch.device("meta"):
        return build(
            preset(
                config.preset,
                "bert",
                **{"vocab": config.vocabulary, "head": "token", "labels": ENTITIES, **config.model},
            )
        )


def _tag(config: TaggingConfig, run: Run) -> dict[str, Any] | None:
    """Corpus -> report -> vocabulary -> model -> training -> test -> result.json."""
    if config.tuned != "all":
        if run.init is None:
            raise ValueError(f"tuned={config.tuned} freezes the model to start from: name it with --init MODEL")
        config = replace(config, training=reading_rate(config.training, config.tuned, run))
    if run.dry_run:
        model = planned_model(config) if run.init is None else with_reader(run, "token", ENTITIES, config.tuned)[0]
        return plan(run, config, model, config.batch_tokens)
    claim(run.out, resume=run.resume)
    if run.init is None:
        planned_model(config)  # so that a wrong setting is told before anything is read
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    corpora = _read(config, run)
    print(tag_report(corpora.train, corpora.validation, corpora.test), file=sys.stderr)
    labels = tuple(corpora.train.labels)
    if len(labels) < 2:
        raise ValueError(f"{corpora.train.file}: one tag only, {labels[0]}: there is nothing to tell apart")
    for tagged in filter(None, (corpora.validation, corpora.test)):
        tagged.check_labels(labels)  # told now, not after the training
    torch.manual_seed(config.training.seed)
    model, tokenizer = (
        with_reader(run, "token", labels, config.tuned) if run.init else _new(config, corpora.train, labels)
    )
    reading = {"max_length": min(config.max_length, model.config.max_positions)}
    task = TaggingTask(
        model, tokenizer, corpora.train, corpora.validation, route=route, batch_tokens=config.batch_tokens,
        seed=config.training.seed, **reading,
    )  # fmt: skip
    training = warmed_up(config.training, run, len(task.batches(0)))
    described = _described(config, run, corpora)
    settings = identity(config, run, described["fingerprints"])

    def evaluate() -> Metrics:
        held = corpora.validation if config.scored == "validation" else corpora.test
        return {} if held is None else Tagger(directory.load(run.out), route, reading).evaluate(held).metrics

    def flops(summary: Summary) -> float:
        length = task.mean_length
        found = costs.flops(model, length)
        frozen = sum(n for part, n in found["parts"].items() if part.startswith("bert."))  # has no backward pass
        return (found["training"] - 2 * frozen) / length * task.tokens_per_word * summary.tokens

    return carry_out(
        run, task, training, route=route, settings=settings, data=described, evaluate=evaluate, flops=flops,
        reading=reading,
    )  # fmt: skip


def _read(config: TaggingConfig, run: Run) -> SplitData[Tagged]:
    if config.data is None:
        return SplitData(*cldr_tagged(config.locale, seed=config.training.seed, size=config.size))
    corpora = read_splits(
        config.data, validation=config.validation, test=config.test, skip_bad_lines=run.skip_bad_lines
    )
    if run.skip_bad_lines:
        labels = corpora.train.labels
        test = corpora.test and corpora.test.only(labels)
        corpora = corpora._replace(validation=corpora.validation.only(labels), test=test)
    tell_splits(corpora, "sentences")
    return corpora


def _described(config: TaggingConfig, run: Run, corpora: SplitData[Tagged]) -> dict[str, Any]:
    """For result.json: enough to find the test data again, and to see whether they are the same."""
    embedded = {"locale": config.locale, "size": config.size, "seed": config.training.seed}
    return {
        "paths": {name: str(tagged.file) for name, tagged in corpora.known.items() if tagged.file},
        "test": list(corpora.test_paths),
        "cldr": None if config.data else embedded,
        "skipped": run.skip_bad_lines,
        "fingerprints": {name: fingerprint(tagged.texts)[:16] for name, tagged in corpora.known.items()},
        "sentences": {name: len(tagged) for name, tagged in corpora.known.items()},
    }


def _new(config: TaggingConfig, train: Tagged, labels: tuple[str, ...]) -> tuple[Bert, Tokenizer]:
    texts = [" ".join(words) for words in train.words]
    with told_warnings():
        tokenizer = train_wordpiece(texts, config.vocabulary, lowercase=config.lowercase)
    vocabulary = {"vocab": tokenizer.get_vocab_size(), "pad": tokenizer.token_to_id("[PAD]")}
    return build(
        preset(config.preset, "bert", **{**vocabulary, "head": "token", "labels": labels, **config.model})
    ), tokenizer
