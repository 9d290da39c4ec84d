"""Translation with Vaswani's encoder-decoder, from the user's parallel corpus or the embedded one."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.core.runtime import Route, prepare
from manyheads.data.cldr import cldr_pairs
from manyheads.data.parallel import Pairs, find_splits, read_parallel, read_splits
from manyheads.data.report import corpus_report
from manyheads.data.store import TokenStore, fingerprint
from manyheads.data.subword import END, PAD, train_bpe
from manyheads.models.transformer import Transformer, TransformerConfig, preset
from manyheads.recipes.run import Run
from manyheads.tasks.translation import Corpus, TranslationTask
from manyheads.training import TrainingConfig, claim, train, write_result


@dataclass(frozen=True)
class TranslationConfig:
    """What a translation run is made of.

    data          a directory with train, val and test files, or one corpus (see `data/parallel.py`);
                  None: the embedded corpus, of `size` training pairs
    preset        of `models/transformer.py`; `model` overrides its fields
    vocabulary    ids of the joint vocabulary, or of each one with joint=false
    batch_tokens  padded tokens of a micro-batch, on each side
    max_length    tokens a training sentence may have; a longer one is an error unless truncate=true
    beam, alpha   of the translations that are scored at the end
    """

    data: str | None = None
    source: str = "en"
    target: str = "de"
    validation: str | None = None
    test: str | None = None
    size: int = 30_000
    preset: str = "tiny"
    model: dict[str, Any] = field(default_factory=dict)
    vocabulary: int = 4000
    joint: bool = True
    batch_tokens: int = 2048
    max_length: int = 256
    truncate: bool = False
    smoothing: float = 0.1
    beam: int = 4
    alpha: float = 0.6
    threads: int | None = None
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(steps=1000, width=128))


@dataclass(frozen=True)
class _Corpora:
    train: Pairs
    validation: Pairs
    test: Pairs | None
    test_paths: list[str]

    def describe(self, config: TranslationConfig) -> dict[str, Any]:
        """For result.json: enough to find the test data again, and to see whether it is the same."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {
            "source": config.source,
            "target": config.target,
            "paths": {name: [str(f) for f in p.files] for name, p in splits.items() if p is not None},
            "test": self.test_paths,
            "cldr": None if config.data else {"size": config.size, "seed": config.training.seed},
            "fingerprints": {
                name: fingerprint([*p.sources, *p.targets])[:16] for name, p in splits.items() if p is not None
            },
            "pairs": {name: len(p) for name, p in splits.items() if p is not None},
        }


def _multi30k() -> TranslationConfig:
    return TranslationConfig(
        vocabulary=5000,
        model={"dropout": 0.2},
        beam=5,
        alpha=1.0,
        training=TrainingConfig(
            width=128, steps=10_000, learning_rate=1.1, warmup=1500, average=10, average_every=520, validate_every=520,
            checkpoint_every=520, clip=1.0,
        ),
    )  # fmt: skip


def multi30k(config: TranslationConfig = _multi30k(), *, run: Run) -> dict[str, Any] | None:  # noqa: B008
    if config.data is None:
        raise ValueError("translation/multi30k needs its data: data=DIR with train, val and test_2016_flickr files")
    return _translate(config, run)


def _translate(config: TranslationConfig, run: Run) -> dict[str, Any] | None:
    claim(run.out, resume=run.resume, resume_command=run.resume_command)
    corpora = _read(config, run.skip_bad_lines)
    test = corpora.test
    report = corpus_report(corpora.train, corpora.validation, test)
    print(report, file=sys.stderr)
    tokenizer, target_tokenizer = _vocabularies(config, corpora.train)
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    torch.manual_seed(config.training.seed)
    model = Transformer(_model_config(config, tokenizer, target_tokenizer))
    cache = run.out / "state" / "tokens"

    def tokenised(pairs: Pairs) -> Corpus:
        return Corpus(
            TokenStore.of(pairs.sources, tokenizer, cache),
            TokenStore.of(pairs.targets, target_tokenizer or tokenizer, cache),
        )

    task = TranslationTask(
        model, tokenizer, target_tokenizer, tokenised(corpora.train), tokenised(corpora.validation),
        route=route, batch_tokens=config.batch_tokens, smoothing=config.smoothing, seed=config.training.seed,
    )  # fmt: skip
    settings = {**asdict(config), "data": corpora.describe(config)["fingerprints"], "init": run.init}
    del settings["training"], settings["threads"], settings["beam"], settings["alpha"]
    summary = train(
        task, replace(config.training, width=model.config.width), run.out, route=route, resume=run.resume,
        max_minutes=run.max_minutes, settings=settings, resume_command=run.resume_command,
    )  # fmt: skip
    if summary.status == "stopped":
        return None
    return {}


def _read(config: TranslationConfig, skip_bad_lines: bool) -> _Corpora:
    if config.data is None:
        corpus = cldr_pairs(config.source, config.target, seed=config.training.seed, size=config.size)
        return _Corpora(*corpus, test_paths=[])
    train_pairs, validation = read_splits(
        config.data, config.source, config.target, validation=config.validation, skip_bad_lines=skip_bad_lines
    )
    paths = find_splits(config.data, config.source, config.target, test=config.test).test
    tests = [read_parallel(path, config.source, config.target, skip_bad_lines=skip_bad_lines) for path in paths]
    return _Corpora(train_pairs, validation, tests[0] if tests else None, paths)


def _vocabularies(config: TranslationConfig, pairs: Pairs) -> tuple[Tokenizer, Tokenizer | None]:
    if config.joint:
        return train_bpe([*pairs.sources, *pairs.targets], config.vocabulary), None
    return train_bpe(pairs.sources, config.vocabulary), train_bpe(pairs.targets, config.vocabulary)


def _model_config(config: TranslationConfig, tokenizer: Tokenizer, target: Tokenizer | None) -> TransformerConfig:
    written = target or tokenizer
    return preset(
        config.preset,
        **{
            "source_vocab": tokenizer.get_vocab_size(),
            "target_vocab": written.get_vocab_size(),
            "pad": written.token_to_id(PAD),
            "end": written.token_to_id(END),
            "start": written.token_to_id(PAD),
            **config.model,
        },
    )
