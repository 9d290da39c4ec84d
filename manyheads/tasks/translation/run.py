"""Translation with Vaswani's encoder-decoder, from the user's parallel corpus or the embedded one.

Each recipe is a function whose default `config` is the recipe; `_translate` is the run that all of them share.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import Route, prepare
from manyheads.data.cldr import cldr_pairs
from manyheads.data.parallel import Pairs, find_splits, read_parallel, read_splits
from manyheads.data.report import corpus_report
from manyheads.data.store import TokenStore, fingerprint
from manyheads.data.subword import END, PAD, train_bpe
from manyheads.data.tokenizers import train_unigram
from manyheads.models.adapt import adapt
from manyheads.models.presets import build, preset
from manyheads.models.transformer import Transformer, TransformerConfig
from manyheads.recipes.fine_tuning import rates
from manyheads.recipes.run import Run, carry_out, identity, plan, refuse_width, told_warnings
from manyheads.tasks.evaluation import Metrics
from manyheads.tasks.translation.predictor import Translator
from manyheads.tasks.translation.task import Corpus, TranslationTask
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import Summary
from manyheads.training.run_directory import claim


@dataclass(frozen=True)
class TranslationConfig:
    """What a translation run is made of.

    data          a directory with train, val and test files, or one corpus (see `data/parallel.py`);
                  None: the embedded corpus, of `size` training pairs
    preset        tiny or another of transformer/; `model` overrides its fields
    tokenizer     "bpe" (Sennrich 2016) or "unigram" (Kudo 2018)
    vocabulary    ids of the joint vocabulary, or of each one with joint=false
    batch_tokens  padded tokens of a micro-batch, on each side
    max_length    tokens a training sentence may have; a longer one is an error, or is cut with truncate=true
    scored        which data are translated and scored at the end, with `beam` and `alpha`
    """

    data: str | None = None
    source: str = "en"
    target: str = "de"
    validation: str | None = None
    test: str | None = None
    size: int = 30_000
    preset: str = "tiny"
    model: dict[str, Any] = field(default_factory=dict)
    tokenizer: Literal["bpe", "unigram"] = "bpe"
    vocabulary: int = 2000
    joint: bool = True
    batch_tokens: int = 2048
    max_length: int = 256
    truncate: bool = False
    smoothing: float = 0.1
    scored: Literal["test", "validation"] = "test"
    beam: int = 4
    alpha: float = 0.6
    threads: int | None = None
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(steps=1000, width=128))

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing is {self.smoothing}: expected a share, from 0 to below 1")
        if not self.alpha >= 0:
            raise ValueError(f"alpha is {self.alpha}: expected 0 or more")
        for name, least in (("vocabulary", 4), ("max_length", 2), ("beam", 1), ("size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: expected {least} or more")


EMBEDDED = TranslationConfig(
    # nothing is noisy and nothing repeats: no dropout, and pre-norm learns fastest in three minutes
    model={"norm": "pre", "final_norm": True, "dropout": 0.0, "encoder_layers": 3, "decoder_layers": 3},
    batch_tokens=1024,
    beam=1,
    training=TrainingConfig(
        width=128, steps=1500, schedule="cosine", learning_rate=3e-3, warmup=150, clip=1.0, validate_every=500,
        checkpoint_every=500, log_every=20,
    ),
)  # fmt: skip

MULTI30K = TranslationConfig(
    vocabulary=5000,
    model={"dropout": 0.2},
    beam=5,
    alpha=1.4,
    training=TrainingConfig(
        width=128, steps=10_000, learning_rate=1.1, warmup=1500, average=10, average_every=520, validate_every=520,
        checkpoint_every=520, clip=1.0,
    ),
)  # fmt: skip

WMT14_BASE = TranslationConfig(
    preset="base",
    vocabulary=37_000,
    batch_tokens=25_000,
    training=TrainingConfig(
        width=512, steps=100_000, average=5, average_every=1500, validate_every=5000, checkpoint_every=1500,
    ),
)  # fmt: skip

WMT14_BIG = replace(
    WMT14_BASE,
    preset="big",
    training=replace(WMT14_BASE.training, width=1024, steps=300_000, average=20),
)


def translation(config: TranslationConfig = EMBEDDED, *, run: Run) -> dict[str, Any] | None:
    """manyheads train translation [source=en target=de] [data=CORPUS]

    Without data, phrases of dates, amounts and names from Unicode CLDR in two locales; what is tested are combinations
    that training has not shown. About three minutes on two cores.
    """
    return _translate(config, run)


def multi30k(config: TranslationConfig = MULTI30K, *, run: Run) -> dict[str, Any] | None:
    """manyheads train translation/multi30k data=DIR [source=en target=de]

    Transformer-Tiny of Wu et al. 2021 (2.6 M parameters, BLEU 41.02 lowercased and tokenised, en-de), on raw cased text
    and with a smaller vocabulary, smaller batches and fewer tokens, to suit two processor cores.
    """
    _require_data(config, run, "train, val and test_2016_flickr of Multi30k")
    return _translate(config, run)


def wmt14_base(config: TranslationConfig = WMT14_BASE, *, run: Run) -> dict[str, Any] | None:
    """manyheads train translation/wmt14-base data=DIR source=en target=de

    The base model of Vaswani 2017 (table 2: BLEU 27.3 en-de): 100,000 steps of 25,000 source and target tokens, joint
    vocabulary of 37,000, the last five checkpoints averaged.
    """
    _require_data(config, run, "WMT14's train, validation and test files")
    return _translate(config, run)


def wmt14_big(config: TranslationConfig = WMT14_BIG, *, run: Run) -> dict[str, Any] | None:
    """manyheads train translation/wmt14-big data=DIR source=en target=de

    The big model of Vaswani 2017 (table 2: BLEU 28.4 en-de): 300,000 steps, dropout 0.3, the last twenty checkpoints.
    """
    _require_data(config, run, "WMT14's train, validation and test files")
    return _translate(config, run)


def _require_data(config: TranslationConfig, run: Run, expected: str) -> None:
    if config.data is None and not run.dry_run:
        raise ValueError(
            f"{run.recipe} needs its data: data=DIR with {expected}, as train.{config.source} + train.{config.target}"
        )


def _translate(config: TranslationConfig, run: Run) -> dict[str, Any] | None:
    """Corpus -> report -> vocabulary -> model -> training -> test -> result.json."""
    refuse_width(run)
    if run.dry_run:
        model = planned_model(config) if run.init is None else _starting_from(run)[1]
        return plan(run, config, model, config.batch_tokens)
    claim(run.out, resume=run.resume)
    if run.init is None:
        planned_model(config)  # so that a wrong setting is told before anything is read
    else:
        rates(run)
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    corpora = _read(config, run)
    print(corpus_report(corpora.train, corpora.validation, corpora.test), file=sys.stderr)
    task = _task(config, run, corpora, route)
    described = corpora.describe(config)
    settings = identity(config, run, described["fingerprints"], use=("beam", "alpha"))
    decoding: dict[str, Any] = {"beam": config.beam, "alpha": config.alpha, "truncate": config.truncate}

    def evaluate() -> Metrics:
        held = corpora.validation if config.scored == "validation" else corpora.test
        if held is None:
            return {}
        translator = Translator(directory.load(run.out), route)
        return translator.evaluate(held, config.target, **decoding).metrics

    def flops(summary: Summary) -> float:
        source, target = task.train.mean_lengths()
        return costs.flops(task.model, source, target)["training"] * summary.tokens / target

    return carry_out(
        run, task, replace(config.training, width=task.model.config.width), route=route, settings=settings,
        data=described, evaluate=evaluate, flops=flops,
        decoding=decoding,
    )  # fmt: skip


class _Corpora(NamedTuple):
    train: Pairs
    validation: Pairs
    test: Pairs | None
    test_paths: list[str]

    def describe(self, config: TranslationConfig) -> dict[str, Any]:
        """For result.json: enough to find the test data again, and to see whether it is the same."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        known = {name: pairs for name, pairs in splits.items() if pairs is not None}
        return {
            "source": config.source,
            "target": config.target,
            "paths": {name: [str(file) for file in pairs.files] for name, pairs in known.items()},
            "test": self.test_paths,
            "cldr": None if config.data else {"size": config.size, "seed": config.training.seed},
            "fingerprints": {name: fingerprint([*p.sources, *p.targets])[:16] for name, p in known.items()},
            "pairs": {name: len(pairs) for name, pairs in known.items()},
        }


def _read(config: TranslationConfig, run: Run) -> _Corpora:
    if config.data is None:
        corpus = cldr_pairs(config.source, config.target, seed=config.training.seed, size=config.size)
        return _Corpora(*corpus, test_paths=[])
    languages, skip = (config.source, config.target), run.skip_bad_lines
    training, validation = read_splits(config.data, *languages, validation=config.validation, skip_bad_lines=skip)
    splits = find_splits(config.data, *languages, validation=config.validation, test=config.test)
    if splits.validation is None:
        print(f"no validation data: {len(validation):,} pairs of the training data are held out", file=sys.stderr)
    paths = splits.test
    if len(paths) > 1:
        print(f"several test sets: the first, {paths[0]}, is scored, {', '.join(paths[1:])} are not", file=sys.stderr)
    test = read_parallel(paths[0], *languages, skip_bad_lines=skip) if paths else None
    for pairs in (training, validation, test):
        for reason, count in (pairs.skips if pairs else {}).items():
            print(f"skipped {count:,} lines of {reason}", file=sys.stderr)
    return _Corpora(training, validation, test, [str(Path(path).absolute()) for path in paths])


def _task(config: TranslationConfig, run: Run, corpora: _Corpora, route: Route) -> TranslationTask:
    """Vocabularies and model: new ones, or those of the model to start from."""
    torch.manual_seed(config.training.seed)
    vocabulary: Mapping[str, bytes] = {}
    if run.init is None:
        tokenizer, target_tokenizer = _vocabularies(config, corpora.train)
        model = Transformer(_model_config(config, tokenizer, target_tokenizer or tokenizer))
    else:
        loaded, model = _starting_from(run)
        assert loaded.tokenizer is not None
        tokenizer, vocabulary = loaded.tokenizer, loaded.vocabulary
        target_tokenizer = None if loaded.target_tokenizer is tokenizer else loaded.target_tokenizer
    limit = min(config.max_length, model.config.max_positions)

    def tokenised(pairs: Pairs, limit: int = limit) -> Corpus:
        cache = run.out / "state" / "tokens"
        source, target = (
            fingerprint([side, *vocabulary.values()]) if vocabulary else None for side in ("source", "target")
        )
        sources = TokenStore.of(pairs.sources, tokenizer, cache, identity=source)
        targets = TokenStore.of(pairs.targets, target_tokenizer or tokenizer, cache, identity=target)
        return Corpus(sources, targets, limit).checked(pairs, truncate=config.truncate)

    if corpora.test is not None:
        # too long a sentence is told now, not after the training
        tokenised(corpora.test, model.config.max_positions)
    return TranslationTask(
        model, tokenizer, target_tokenizer, tokenised(corpora.train), tokenised(corpora.validation),
        route=route, batch_tokens=config.batch_tokens, smoothing=config.smoothing, seed=config.training.seed,
        vocabulary=vocabulary,
    )  # fmt: skip


def _vocabularies(config: TranslationConfig, pairs: Pairs) -> tuple[Tokenizer, Tokenizer | None]:
    learn = {"bpe": train_bpe, "unigram": train_unigram}[config.tokenizer]
    with told_warnings():
        first = learn([*pairs.sources, *pairs.targets] if config.joint else pairs.sources, config.vocabulary)
        second = None if config.joint else learn(pairs.targets, config.vocabulary)
    return first, second


def _model_config(config: TranslationConfig, source: Tokenizer, target: Tokenizer) -> TransformerConfig:
    pad, end = target.token_to_id(PAD), target.token_to_id(END)
    sizes = {"source_vocab": source.get_vocab_size(), "target_vocab": target.get_vocab_size()}
    special = {"pad": pad, "end": end, "start": pad, "source_pad": source.token_to_id(PAD)}
    return preset(config.preset, "transformer", **{**sizes, **special, **config.model})


def planned_model(config: TranslationConfig) -> Transformer:
    """The model, without memory, as it will be if the text yields the whole vocabulary that is asked for."""
    size = config.vocabulary
    special = {"pad": size - 1, "end": 0, "start": size - 1}
    with torch.device("meta"):
        sizes = {"source_vocab": size, "target_vocab": size}
        return build(preset(config.preset, "transformer", **{**sizes, **special, **config.model}))


def _starting_from(run: Run) -> tuple[directory.Loaded, Transformer]:
    """What the directory holds, and its model with the dropout that the user asks for."""
    assert run.init is not None
    dropouts, loaded = rates(run), directory.load(run.init)
    if not isinstance(loaded.model, Transformer):
        raise ValueError(f"{run.init}: a {loaded.family} model; {run.recipe} starts from a translator's weights")
    if loaded.tokenizer is None or loaded.target_tokenizer is None:
        raise ValueError(f"{run.init} has no tokenizer, so training cannot continue from it")
    model, _ = adapt(loaded.model, **dropouts)
    print(f"starting from {run.init}: all {len(model.state_dict())} tensors are its own, none is new", file=sys.stderr)
    return loaded, model
