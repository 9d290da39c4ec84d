"""Pretraining BERT on running text; the recipes that fine-tune it are those of the tasks, started with --init."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Regex, Tokenizer, normalizers

from manyheads.analysis import costs
from manyheads.core.runtime import Route, prepare
from manyheads.data.documents import BREAK, Document, fingerprint_of, read_documents, split_documents, standard_library
from manyheads.data.pretraining import Documents, PretrainingData, Rules, Special, continuations
from manyheads.data.tokenizers import BERT_TOKENS, train_wordpiece
from manyheads.models.bert import Bert, Head
from manyheads.models.presets import build, preset
from manyheads.recipes.fine_tuning import starting_from
from manyheads.recipes.run import Run, carry_out, identity, plan, told_warnings
from manyheads.tasks.masked_words.task import MaskedLMTask
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import Summary
from manyheads.training.run_directory import claim


@dataclass(frozen=True)
class PretrainingConfig:
    """What a pretraining is made of.

    data           a text file with blank lines between documents, a .jsonl or .parquet file with a text in the `column`
                   of every row, or a directory of such files; None: the documentation in Python's standard library
    validation     the same, for validation; None: 5% of the documents
    preset         tiny or another of bert/; `model` overrides its fields
    vocabulary     ids of the WordPiece vocabulary, trained on the text; `lowercase` also strips accents
    next_sentence  predict, too, whether a text follows another; without, examples are one span of text
    length         tokens of an example
    share          of the tokens that are to be predicted: 15% in the paper; Wettig 2022 finds 40% better
    predictions    how many they are at most; None: no limit. (The paper's, 20 of 128 tokens, never binds.)
    whole_words    mask all pieces of a word together
    copies         None: new examples in every epoch. The paper: 10, and then they come again
    batch_tokens   padded tokens of a micro-batch
    """

    data: str | None = None
    validation: str | None = None
    column: str = "text"
    preset: str = "tiny"
    model: dict[str, Any] = field(default_factory=dict)
    vocabulary: int = 4000
    lowercase: bool = True
    next_sentence: bool = True
    length: int = 128
    share: float = 0.15
    predictions: int | None = None
    whole_words: bool = False
    copies: int | None = None
    batch_tokens: int = 2048
    threads: int | None = None
    training: TrainingConfig = field(default_factory=lambda: _paper(steps=1_000_000, warmup=10_000))

    @property
    def rules(self) -> Rules:
        return Rules(
            length=self.length, next_sentence=self.next_sentence, share=self.share, predictions=self.predictions,
            whole_words=self.whole_words, copies=self.copies,
        )  # fmt: skip


def _paper(**settings: Any) -> TrainingConfig:
    """Devlin 2018, appendix A.2, and the original code's optimiser."""
    paper: dict[str, Any] = {
        "optimiser": "bert_adam", "schedule": "linear", "learning_rate": 1e-4, "betas": (0.9, 0.999), "eps": 1e-6,
        "weight_decay": 0.01, "clip": 1.0, "validate_every": 10_000,
    }  # fmt: skip
    return TrainingConfig(**{**paper, **settings})


EMBEDDED = PretrainingConfig(
    model={"dropout": 0.0, "attention_dropout": 0.0},
    training=_paper(steps=1200, warmup=120, learning_rate=1e-3, validate_every=400, checkpoint_every=400, log_every=20),
)

# 33 million tokens, not quite an hour on one core: no pairs, so that every token is context, no dropout, as a
# review comes twice, masked anew, and Adam with its bias correction (without, the loss stayed at word frequencies).
IMDB = PretrainingConfig(
    model={"max_positions": 128, "dropout": 0.0, "attention_dropout": 0.0},
    vocabulary=8000,
    next_sentence=False,
    length=128,
    training=_paper(
        optimiser="adamw",
        betas=(0.9, 0.98),
        steps=16_000,
        warmup=200,
        learning_rate=2e-3,
        validate_every=2000,
        checkpoint_every=1000,
        log_every=50,
    ),
)


def pretraining(config: PretrainingConfig = EMBEDDED, *, run: Run) -> dict[str, Any] | None:
    """manyheads train bert/pretraining [data=TEXT] [next_sentence=false] [preset=base-uncased]

    Masked words and the next sentence (Devlin 2018, section 3.1). Without data, on the documentation inside Python's
    standard library, about three minutes on two cores. The paper: preset=base-uncased vocabulary=30522, batches of 256
    examples, a million steps, of which 900,000 with length=128 and the rest with length=512 and --init.
    """
    return _pretrain(config, run)


def imdb(config: PretrainingConfig = IMDB, *, run: Run) -> dict[str, Any] | None:
    """manyheads train bert/imdb data=imdb/unsupervised.parquet

    A small BERT on the 50,000 reviews that nobody has labelled, to start `bert/imdb-1000` from; almost an hour.
    """
    if config.data is None and not run.dry_run:
        raise ValueError(f"{run.recipe} needs its data: data=PATH of IMDB's unsupervised.parquet")
    return _pretrain(config, run)


def planned_model(config: PretrainingConfig) -> Bert:
    """The model, without memory, as it will be if the text yields the whole vocabulary that is asked for."""
    with torch.device("meta"):
        return build(
            preset(config.preset, "bert", **{"vocab": config.vocabulary, "head": _head(config), **config.model})
        )


def _head(config: PretrainingConfig) -> Head:
    return "pretraining" if config.next_sentence else "masked_lm"


def _pretrain(config: PretrainingConfig, run: Run) -> dict[str, Any] | None:
    """Documents -> vocabulary -> model -> training -> result.json."""
    if run.dry_run:
        model = planned_model(config) if run.init is None else starting_from(run, _head(config))[0]
        return plan(run, config, model, config.batch_tokens)
    claim(run.out, resume=run.resume)
    rules = config.rules
    if run.init is None:  # so that a wrong setting is told before anything is read
        _check_length(config, planned_model(config))
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    corpora = _read(config, run)
    print(corpora.report(), file=sys.stderr)
    task = _task(config, run, corpora, route)
    fingerprints = {"train": fingerprint_of(corpora.train), "validation": fingerprint_of(corpora.validation)}
    paths = {name: path and str(Path(path).absolute()) for name, path in
             (("data", config.data), ("validation", config.validation))}  # fmt: skip
    described = {
        **paths, "column": config.column, "fingerprints": fingerprints,
        "documents": {"train": len(corpora.train), "validation": len(corpora.validation)},
        "rules": asdict(rules), "seed": config.training.seed,
    }  # fmt: skip
    settings = identity(config, run, fingerprints, use=("column",))
    return carry_out(
        run, task, config.training, route=route, settings=settings, data=described, evaluate=dict,
        flops=lambda summary: _flops(task, summary),
    )  # fmt: skip


class _Corpora(NamedTuple):
    train: list[Document]
    validation: list[Document]

    def report(self) -> str:
        seen = {sentence for document in self.train for sentence in document}
        held = [sentence for document in self.validation for sentence in document]
        known = sum(sentence in seen for sentence in held)
        total = sum(map(len, self.train))
        letters = sum(len(sentence) for document in self.train for sentence in document)
        return (
            f"training: {len(self.train):,} documents, {total:,} sentences, {letters:,} characters; "
            f"{total - len(seen):,} sentences repeat an earlier one\n"
            f"validation: {len(self.validation):,} documents, {len(held):,} sentences, of which {known:,} are in the "
            "training data too"
        )


def _read(config: PretrainingConfig, run: Run) -> _Corpora:
    def read(path: str) -> list[Document]:
        return read_documents(path, column=config.column, skip_bad_lines=run.skip_bad_lines)

    documents = standard_library() if config.data is None else read(config.data)
    if config.validation is not None:
        found = _Corpora(documents, read(config.validation))
    else:
        found = _Corpora(*split_documents(documents))
    if config.next_sentence and len(found.validation) < 2:
        raise ValueError(
            f"{config.data}: 1 document is held out for validation, and pairs need two: give validation=PATH or "
            "next_sentence=false"
        )
    return found


def _task(config: PretrainingConfig, run: Run, corpora: _Corpora, route: Route) -> MaskedLMTask:
    """Vocabulary and model: new ones, or those of the model to start from."""
    torch.manual_seed(config.training.seed)
    if run.init is None:
        texts = (sentence for document in corpora.train for sentence in document)
        tokenizer = wordpiece(texts, config.vocabulary, lowercase=config.lowercase)
        # as the documents are read: whoever fine-tunes the model gives it whole texts
        breaks = normalizers.Replace(Regex(BREAK), " ")
        tokenizer.normalizer = normalizers.Sequence([breaks, tokenizer.normalizer])
        sizes = {"vocab": tokenizer.get_vocab_size(), "pad": tokenizer.token_to_id(BERT_TOKENS[0])}
        model = build(preset(config.preset, "bert", **{**sizes, "head": _head(config), **config.model}))
    else:
        model, tokenizer = starting_from(run, _head(config))
        tokenizer.encode_special_tokens = True  # a "[MASK]" in running text is text
    _check_length(config, model)
    special, seed = Special.of(tokenizer), config.training.seed
    inner = continuations(tokenizer.get_vocab())

    def examples(documents: list[Document]) -> PretrainingData:
        tokenised = Documents.of(documents, tokenizer, run.out / "state" / "tokens")
        return PretrainingData(tokenised, config.rules, special, model.config.vocab, seed=seed, inner=inner)

    return MaskedLMTask(
        model, tokenizer, examples(corpora.train), examples(corpora.validation), route=route,
        batch_tokens=config.batch_tokens, seed=seed,
    )  # fmt: skip


def _check_length(config: PretrainingConfig, model: Bert) -> None:
    if config.length > model.config.max_positions:
        raise ValueError(f"length is {config.length}, the model takes {model.config.max_positions} tokens: lower it")


def wordpiece(texts: Iterable[str], vocabulary: int, *, lowercase: bool) -> Tokenizer:
    """A WordPiece tokenizer; that the texts yield fewer ids than asked is told in a line."""
    with told_warnings():
        tokenizer = train_wordpiece(texts, vocabulary, lowercase=lowercase)
    return tokenizer


def _flops(task: MaskedLMTask, summary: Summary) -> float:
    """The encoder on every token, the word predictor on the masked ones."""
    examples = task.train.epoch(0)
    length = round(float(examples.lengths.mean()))
    masked = sum(task.train.rules.wanted(n) for n in examples.lengths.tolist())
    c = task.model.config
    with torch.device("meta"):
        encoder = Bert(replace(c, head="none"))
    per_token = costs.flops(encoder, length)["training"] / length
    words = costs.TRAINING_PASSES * 2 * (c.width * c.width + c.width * c.vocab)
    return summary.tokens * (words + per_token * float(examples.lengths.sum()) / masked)
