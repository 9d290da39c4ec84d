"""Classifying texts and pairs: from scratch with the textbook's model and its rivals, or fine-tuned from BERT.

Each recipe is a function whose default `config` is the recipe; `_classify` is the run that all of them share.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import accounting
from manyheads.core.runtime import prepare
from manyheads.data.cldr_languages import LANGUAGES, cldr_languages
from manyheads.data.labelled import Columns, Labelled, label_order, read_labelled_splits
from manyheads.data.labelled_report import labelled_report
from manyheads.data.splits import SplitData
from manyheads.data.store import fingerprint
from manyheads.data.subword import PAD, train_bpe
from manyheads.data.tokenizers import train_word_level
from manyheads.models.presets import build, preset
from manyheads.models.tfidf import Tfidf
from manyheads.recipes.fine_tuning import Tuned, reading_rate, warmed_up, with_reader
from manyheads.recipes.run import Run, carry_out, identity, plan, tell_splits, told_warnings
from manyheads.tasks.classification.predictor import Classifier
from manyheads.tasks.classification.task import ClassificationTask, encode, label_ids
from manyheads.tasks.classification.tfidf import fit_tfidf
from manyheads.tasks.evaluation import Metrics
from manyheads.training import Summary, TrainingConfig, claim, write_result

# Devlin 2018, appendix A.3: 2 to 4 epochs at 2e-5 to 5e-5
FINE_TUNING = TrainingConfig(
    epochs=3, optimiser="adamw", schedule="linear", learning_rate=3e-5, warmup=100, betas=(0.9, 0.999), eps=1e-6,
    weight_decay=0.01, clip=1.0, log_every=20,
)  # fmt: skip


@dataclass(frozen=True)
class ClassificationConfig:
    """What a classification run is made of.

    data          a directory with train, val and test files, or one file: .tsv, .csv, .jsonl, .parquet; its columns are
                  text and label, or sentence1, sentence2 and label (other names: `data/labelled.py`);
                  None: the embedded corpus, of about `size` training phrases
    columns       names of the columns: columns.text, columns.pair and columns.label
    names         what the labels 0, 1, ... of the data are called
    items         how many of the training items are used, drawn at random by the seed; None: all
    preset        the model, where the run does not start from another one (None: it has to); `model` overrides its
                  fields
    tokens        "words" without punctuation, lowercased, as Keras has them; "pieces" of words (BPE)
    max_length    tokens of a text while training; longer ones are an error, or are cut with truncate=true
    tuned         of the model to start from: "all"; or nothing, and a BiLSTM reads its "last" layer, or its "last-four"
    scratch       forget the weights of the model to start from: what are they worth?
    batch_tokens  padded tokens of a micro-batch, which has at most `batch_items` texts
    scored        which data are classified and scored at the end
    """

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    columns: Columns = field(default_factory=Columns)
    names: tuple[str, ...] = ()
    size: int = 48_000
    items: int | None = None
    preset: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    tokens: Literal["words", "pieces"] = "words"
    vocabulary: int = 20_000
    max_length: int | None = None
    truncate: bool = False
    tuned: Tuned = "all"
    scratch: bool = False
    batch_tokens: int = 4096
    batch_items: int | None = None
    scored: Literal["test", "validation"] = "test"
    threads: int | None = None
    training: TrainingConfig = field(default=FINE_TUNING)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        if self.max_length is not None and not 2 <= self.max_length <= self.batch_tokens:
            raise ValueError(f"max_length is {self.max_length}: expected 2 to batch_tokens, {self.batch_tokens}")
        for name in ("items", "batch_items", "size", "vocabulary"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}: expected 1 or more")


EMBEDDED = ClassificationConfig(
    preset="text-classifier/corrected",
    tokens="pieces",
    vocabulary=12_000,
    model={
        "width": 64, "head_width": 32, "feed_forward": 128, "max_positions": 256, "dropout": 0.2, "pooling": "mean",
    },
    training=TrainingConfig(
        epochs=4, schedule="cosine", learning_rate=3e-3, warmup=100, betas=(0.9, 0.999), eps=1e-8, clip=1.0,
        log_every=20,
    ),
)  # fmt: skip
IMDB = ClassificationConfig(
    preset="text-classifier/textbook",
    names=("negative", "positive"),
    max_length=600,
    truncate=True,
    batch_tokens=32 * 600,
    batch_items=32,
    training=TrainingConfig(
        epochs=6, schedule="constant", learning_rate=1e-3, warmup=0, betas=(0.9, 0.999), eps=1e-7, metric="loss",
        patience=2,
    ),
)  # fmt: skip
IMDB_CORRECTED = replace(IMDB, preset="text-classifier/corrected")
IMDB_RNN = replace(IMDB, preset="sequence-baseline/rnn", training=replace(IMDB.training, clip=1.0))
IMDB_LSTM = replace(IMDB, preset="sequence-baseline/lstm", training=replace(IMDB.training, clip=1.0))
IMDB_BILSTM = replace(IMDB_LSTM, preset="sequence-baseline/bilstm")
IMDB_CONV1D = replace(IMDB, preset="sequence-baseline/conv1d")
IMDB_CONV2D = replace(IMDB, preset="sequence-baseline/conv2d")
IMDB_TFIDF = replace(IMDB, preset="tfidf", max_length=None, truncate=False)
SST2 = ClassificationConfig(names=("negative", "positive"), max_length=128, batch_tokens=2048, batch_items=32)
MRPC = ClassificationConfig(
    names=("not_equivalent", "equivalent"), max_length=128, batch_tokens=2048, batch_items=16,
    training=replace(FINE_TUNING, learning_rate=5e-5, warmup=70),
)  # fmt: skip
ANY = ClassificationConfig(max_length=256, batch_items=32)


def text_classification(config: ClassificationConfig = EMBEDDED, *, run: Run) -> dict[str, Any] | None:
    """manyheads train text-classification [data=DIR] [preset=text-classifier/textbook]

    Without data: which of 60 languages is a phrase of dates, amounts and names from Unicode CLDR in? What is tested are
    combinations that training has not shown. About a minute. With --init it has the
    fine-tunings' optimiser and schedule.
    """
    if run.init:
        given = [key.removeprefix("training.") for key in run.overrides if key.startswith("training.")]
        config = replace(config, training=replace(FINE_TUNING, **{n: getattr(config.training, n) for n in given}))
    return _classify(config, run)


def imdb_textbook(config: ClassificationConfig = IMDB, *, run: Run) -> dict[str, Any] | None:
    """manyheads train imdb/textbook data=DIR

    The chapter's classifier as published: 20,000 words, 600 of each review, padding that is read, no positions. Adam
    instead of RMSprop, the epoch with the best validation loss kept. (Chollet, 8 times wider: accuracy 0.875.)
    """
    return _on_imdb(config, run)


def imdb_corrected(config: ClassificationConfig = IMDB_CORRECTED, *, run: Run) -> dict[str, Any] | None:
    """manyheads train imdb/corrected data=DIR

    As `imdb/textbook`, but with learned positions, and padding that is not read.
    """
    return _on_imdb(config, run)


def imdb_rnn(config: ClassificationConfig = IMDB_RNN, *, run: Run) -> dict[str, Any] | None:
    """manyheads train imdb/rnn data=DIR: a plain recurrent network, its last state, as `imdb/textbook` otherwise"""
    return _on_imdb(config, run)


def imdb_lstm(config: ClassificationConfig = IMDB_LSTM, *, run: Run) -> dict[str, Any] | None:
    """manyheads train imdb/lstm data=DIR: an LSTM, as `imdb/textbook` otherwise"""
    return _on_imdb(config, run)


def imdb_bilstm(config: ClassificationConfig = IMDB_BILSTM, *, run: Run) -> dict[str, Any] | None:
    """manyheads train imdb/bilstm data=DIR: an LSTM in both directions, as `imdb/textbook` otherwise"""
    return _on_imdb(config, run)


def imdb_conv1d(config: ClassificationConfig = IMDB_CONV1D, *, run: Run) -> dict[str, Any] | None:
    """manyheads train imdb/conv1d data=DIR: two convolutions along the words, as `imdb/textbook` otherwise"""
    return _on_imdb(config, run)


def imdb_conv2d(config: ClassificationConfig = IMDB_CONV2D, *, run: Run) -> dict[str, Any] | None:
    """manyheads train imdb/conv2d data=DIR: two convolutions along words and features, as `imdb/textbook` otherwise"""
    return _on_imdb(config, run)


def imdb_tfidf(config: ClassificationConfig = IMDB_TFIDF, *, run: Run) -> dict[str, Any] | None:
    """manyheads train imdb/tfidf data=DIR: weighted words and logistic regression, on whole reviews (scikit-learn)"""
    return _on_imdb(config, run)


def sst2(config: ClassificationConfig = SST2, *, run: Run) -> dict[str, Any] | None:
    """manyheads train sst2 data=DIR --init MODEL [tuned=last-four]

    The fine-tuning of Devlin 2018, section 4.1, on the sentences of SST-2 (BERT base: accuracy 0.935 on GLUE's test).
    """
    return _fine_tune(config, run, "train.tsv and test.tsv of SST-2, with the columns sentence and label")


def mrpc(config: ClassificationConfig = MRPC, *, run: Run) -> dict[str, Any] | None:
    """manyheads train mrpc data=DIR --init MODEL [tuned=last-four]

    The fine-tuning of Devlin 2018, section 4.1, on the pairs of MRPC (BERT base: F1 0.889 on GLUE's test).
    """
    return _fine_tune(config, run, "train.tsv and test.tsv of MRPC, with the columns sentence1, sentence2 and label")


def single_sentence(config: ClassificationConfig = ANY, *, run: Run) -> dict[str, Any] | None:
    """manyheads train single-sentence data=DIR --init MODEL: fine-tune on your own texts and labels"""
    return _fine_tune(config, run, "train.tsv (or .csv, .jsonl, .parquet) with the columns text and label")


def sentence_pair(config: ClassificationConfig = ANY, *, run: Run) -> dict[str, Any] | None:
    """manyheads train sentence-pair data=DIR --init MODEL: fine-tune on your own pairs of texts and labels"""
    return _fine_tune(config, run, "train.tsv (or .csv, ...) with the columns sentence1, sentence2 and label")


def planned_model(config: ClassificationConfig) -> Any:
    """The model, without memory, as it will be if the text yields the whole vocabulary that is asked for."""
    if config.preset is None:
        raise ValueError("this recipe starts from another model: name that model")
    labels = config.names or (tuple(LANGUAGES) if config.data is None else ("0", "1"))
    with torch.device("meta"):
        return _model(config, labels, config.vocabulary, 0, 1)


def _on_imdb(config: ClassificationConfig, run: Run) -> dict[str, Any] | None:
    if config.data is None and not run.dry_run:
        raise ValueError(f"{run.recipe} needs its data: data=DIR with train.parquet and test.parquet of IMDB")
    if run.init is not None:
        raise ValueError(f"{run.recipe} trains from scratch: `single-sentence data=DIR --init MODEL` fine-tunes")
    return _classify(config, run)


def _fine_tune(config: ClassificationConfig, run: Run, expected: str) -> dict[str, Any] | None:
    if run.init is None:
        raise ValueError(f"{run.recipe} fine-tunes: name the model to start from with --init MODEL, a BERT directory")
    if config.data is None and not run.dry_run:
        raise ValueError(f"{run.recipe} needs its data: data=DIR with {expected}")
    return _classify(replace(config, training=reading_rate(config.training, config.tuned, run)), run)


def _classify(config: ClassificationConfig, run: Run) -> dict[str, Any] | None:
    """Corpus -> report -> vocabulary -> model -> training -> test -> result.json."""
    _refuse_idle(config, run)
    if run.dry_run:
        labels = config.names or ("0", "1")
        model = planned_model(config) if run.init is None else with_reader(run, "sequence", labels, config.tuned)[0]
        return plan(run, config, model, config.batch_tokens)
    claim(run.out, resume=run.resume, resume_command=run.resume_command)
    if (run.out / "result.json").exists() and not run.resume:
        raise ValueError(f"{run.out} holds a finished run; choose another directory (--out)")
    if run.init is None:
        planned_model(config)  # so that a wrong setting is told before anything is read
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    corpora = _read(config, run)
    print(labelled_report(*corpora[:3]), file=sys.stderr)
    if run.recipe == "sentence-pair" and corpora.train.pairs is None:
        raise ValueError(f"{config.data}: single texts: name the column of the second one with columns.pair=NAME")
    if run.recipe == "single-sentence" and corpora.train.pairs is not None:
        raise ValueError(
            f"{config.data}: pairs of texts: train sentence-pair on them, or name one with columns.text=NAME"
        )
    labels = config.names or label_order(corpora.train.labels)
    torch.manual_seed(config.training.seed)
    if run.init is None:
        model, tokenizer = _new(config, corpora.train, labels)
    else:
        model, tokenizer = with_reader(
            run, "sequence", labels, config.tuned, scratch=config.scratch,
            dropouts=config.model if config.preset is None else None,
        )  # fmt: skip
    limit = model.config.max_positions
    if corpora.test is not None and not config.truncate:  # too long a text is told now, not after the training
        encode(tokenizer, corpora.test.texts, corpora.test.pairs, limit, truncate=False, where=corpora.test.place)
    described = _described(config, run, corpora)

    def evaluate() -> Metrics:
        held = corpora.validation if config.scored == "validation" else corpora.test
        if held is None:
            return {}
        return Classifier(directory.load(run.out), route).evaluate(held, truncate=config.truncate).metrics

    if isinstance(model, Tfidf):
        return _fit(config, run, model, tokenizer, corpora.train, described, evaluate)
    task = ClassificationTask(
        model, tokenizer, corpora.train, corpora.validation, route=route, batch_tokens=config.batch_tokens,
        batch_items=config.batch_items, max_length=min(config.max_length or limit, limit), truncate=config.truncate,
        seed=config.training.seed,
    )  # fmt: skip
    settings = {**identity(config, run, described["fingerprints"]), "labels": list(labels)}
    training = warmed_up(config.training, run, len(task.batches(0)))

    def flops(summary: Summary) -> float:
        return accounting.flops(model, round(task.tokens_per_item))["training"] * summary.tokens

    return carry_out(
        run, task, training, route=route, settings=settings, data=described, evaluate=evaluate,
        flops=flops, truncate=config.truncate,
    )  # fmt: skip


def _refuse_idle(config: ClassificationConfig, run: Run) -> None:
    """Raises a ValueError for what the user has set and nothing would heed."""
    if run.init is not None:
        return
    if config.tuned != "all" or config.scratch:
        raise ValueError("tuned and scratch are about the model to start from: name it with --init MODEL")
    if config.preset == "tfidf":
        idle = [key for key in run.overrides if key.startswith(("training.", "batch_")) and key != "training.seed"]
        options = {"--max-minutes": run.max_minutes, "--precision": run.precision, "--compile": run.compile or None}
        if idle := [*idle, *(name for name, value in options.items() if value is not None)]:
            raise ValueError(f"{', '.join(idle)}: TF-IDF is not trained step by step, but fitted at once: leave it out")


def _fit(
    config: ClassificationConfig, run: Run, model: Tfidf, tokenizer: Tokenizer, train: Labelled,
    described: dict[str, Any], evaluate: Callable[[], Metrics],
) -> dict[str, Any]:  # fmt: skip
    """Instead of a training: TF-IDF is fitted at once."""
    started = time.monotonic()
    encoded = encode(tokenizer, train.texts, train.pairs, config.max_length, truncate=config.truncate)
    fit_tfidf(model, encoded.ids, label_ids(train, model.config.labels))
    print(f"fitted and saved as {directory.save(run.out, model, tokenizer)} in {run.out}", file=sys.stderr)
    return write_result(
        run.out, recipe=run.recipe, overrides=run.overrides, data=described, metrics=evaluate(),
        wall_seconds=time.monotonic() - started, flops=None, parameters=sum(p.numel() for p in model.parameters()),
        seed=config.training.seed, truncate=config.truncate,
    )  # fmt: skip


def _read(config: ClassificationConfig, run: Run) -> SplitData[Labelled]:
    if config.data is None:
        corpora = SplitData(*cldr_languages(seed=config.training.seed, size=config.size))
    else:
        corpora = read_labelled_splits(
            config.data, config.columns, names=config.names, validation=config.validation, test=config.test,
            skip_bad_lines=run.skip_bad_lines,
        )  # fmt: skip
        tell_splits(corpora, "items")
    return corpora.sampled(config.items, config.training.seed)


def _described(config: ClassificationConfig, run: Run, corpora: SplitData[Labelled]) -> dict[str, Any]:
    """For result.json: enough to find the test data again, and to see whether they are the same."""
    return {
        "paths": {name: str(data.file) for name, data in corpora.known.items() if data.file},
        "test": list(corpora.test_paths),
        "cldr": None if config.data else {"size": config.size, "seed": config.training.seed},
        "columns": asdict(config.columns),
        "pairs": corpora.train.pairs is not None,
        "skipped": run.skip_bad_lines,
        "fingerprints": {name: fingerprint([*d.inputs, *d.labels])[:16] for name, d in corpora.known.items()},
        "items": {name: len(data) for name, data in corpora.known.items()},
    }


def _new(config: ClassificationConfig, train: Labelled, labels: tuple[str, ...]) -> tuple[Any, Tokenizer]:
    if train.pairs is not None:
        raise ValueError(f"{config.data}: pairs need a model that reads both texts: start from one with --init MODEL")
    with told_warnings():
        learn = train_word_level if config.tokens == "words" else train_bpe
        tokenizer = learn(train.texts, config.vocabulary)
    pad, unknown = (
        next(i for i in map(tokenizer.token_to_id, names) if i is not None)
        for names in (("[PAD]", PAD), ("[UNK]", "<unk>"))
    )
    return _model(config, labels, tokenizer.get_vocab_size(), pad, unknown), tokenizer


def _model(config: ClassificationConfig, labels: tuple[str, ...], size: int, pad: int, unknown: int) -> Any:
    assert config.preset is not None
    settings: dict[str, Any] = {"vocab": size, "labels": labels, "pad": pad, **config.model}
    if config.preset == "tfidf":
        settings = {"unknown": unknown, **settings}
    return build(preset(config.preset, "text-classifier", "sequence-baseline", "tfidf", **settings))
