"""Language models of GPT-2's shape, trained from scratch on running text, or further from another one's weights."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import Route, prepare
from manyheads.data.blocks import token_stream
from manyheads.data.corpora import Corpora, describe, read_corpora
from manyheads.data.store import fingerprint
from manyheads.data.tokenizers import END_OF_TEXT, train_byte_bpe, train_character
from manyheads.models.adapt import adapt
from manyheads.models.gpt import GPT
from manyheads.models.presets import build, preset
from manyheads.recipes.run import Run, carry_out, identity, plan, told_warnings
from manyheads.tasks.evaluation import Metrics
from manyheads.tasks.language.predictor import Generator
from manyheads.tasks.language.task import LanguageModellingTask
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import Summary
from manyheads.training.run_directory import claim

EMBEDDED_TRAINING = TrainingConfig(
    steps=1500, optimiser="adamw", schedule="cosine", learning_rate=3e-3, floor=0.1, warmup=100, betas=(0.9, 0.99),
    eps=1e-8, weight_decay=0.1, clip=1.0, validate_every=500, checkpoint_every=500, log_every=20,
)  # fmt: skip


@dataclass(frozen=True)
class LanguageModellingConfig:
    """What a language modelling run is made of.

    data        a text file or a directory of them (see `data/corpora.py`); None: the standard library's source text
    share       of the training data, held out where there is no validation data
    tokenizer   "byte-bpe" of at most `vocabulary` ids, or "character", whose vocabulary is all characters of the corpus
    preset      nano or another of gpt/ and gpt2/; `model` overrides its fields
    block       tokens that are read at once, which are all the model's positions
    rows        blocks of a micro-batch
    random      blocks from anywhere in the text; or one behind the other, so that an epoch is the whole text
    scored      which data are scored at the end, in windows of `block` tokens, one every `stride` (None: `block`)
    """

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    share: float = 0.05
    tokenizer: Literal["byte-bpe", "character"] = "byte-bpe"
    vocabulary: int = 1024
    preset: str = "gpt2/nano"
    model: dict[str, Any] = field(default_factory=dict)
    block: int = 128
    rows: int = 8
    random: bool = False
    scored: Literal["test", "validation"] = "test"
    stride: int | None = None
    threads: int | None = None
    training: TrainingConfig = EMBEDDED_TRAINING

    def __post_init__(self) -> None:
        for name in ("block", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.stride is not None and not 0 < self.stride <= self.block:
            raise ValueError(f"stride is {self.stride}: expected 1 to block, {self.block}")


EMBEDDED = LanguageModellingConfig()

# nanoGPT's train.py and config/train_shakespeare_char.py with the options of its README for a CPU
TINY_SHAKESPEARE = LanguageModellingConfig(
    share=0.1,
    tokenizer="character",
    vocabulary=67,  # 65 characters, the end of text and the unknown one, for --dry-run
    block=64,
    rows=12,
    random=True,
    scored="validation",
    training=replace(EMBEDDED_TRAINING, steps=2000, learning_rate=1e-3),
)
TINY_SHAKESPEARE_GPU = replace(
    TINY_SHAKESPEARE,
    preset="gpt2/baby",
    block=256,
    rows=64,
    training=replace(TINY_SHAKESPEARE.training, steps=5000, validate_every=250, metric="loss"),
)


def language_modelling(config: LanguageModellingConfig = EMBEDDED, *, run: Run) -> dict[str, Any] | None:
    """manyheads train language-modelling [data=FILE|DIR] [--init MODEL]

    Without data, the source text of Python's standard library, byte-level BPE: about three minutes on two cores.
    """
    return _model(config, run)


def tiny_shakespeare(config: LanguageModellingConfig = TINY_SHAKESPEARE, *, run: Run) -> dict[str, Any] | None:
    """manyheads train language-modelling/tiny-shakespeare data=FILE

    nanoGPT's character model for a CPU (github.com/karpathy/nanoGPT, README, "I only have a macbook"): 0.8 M
    parameters, 2,000 steps of 12 blocks of 64, the last tenth of the text for validation. Published validation loss:
    1.88, estimated on 20 random batches; here on every token of it, in blocks of 64.
    training.learning_rate=3e-3 does better.
    """
    _require_data(config, run)
    return _model(config, run)


def tiny_shakespeare_gpu(config: LanguageModellingConfig = TINY_SHAKESPEARE_GPU, *, run: Run) -> dict[str, Any] | None:
    """manyheads train language-modelling/tiny-shakespeare-gpu data=FILE --precision bf16

    nanoGPT's character model for a GPU (README, "quick start"): 10.7 M parameters, dropout 0.2, 5,000 steps of 64
    blocks of 256, the best weights by validation loss. Published: 1.4697.
    """
    _require_data(config, run)
    return _model(config, run)


def _require_data(config: LanguageModellingConfig, run: Run) -> None:
    if config.data is None and not run.dry_run:
        raise ValueError(f"{run.recipe} needs its data: data=FILE, tiny-shakespeare's input.txt, or its directory")


def _model(config: LanguageModellingConfig, run: Run) -> dict[str, Any] | None:
    """Corpus -> report -> vocabulary -> model -> training -> test -> result.json."""
    if run.dry_run:
        model = planned_model(config) if run.init is None else _continued(run)[0]
        return plan(run, config, model, config.rows * config.block)
    claim(run.out, resume=run.resume)
    if run.init is None:
        planned_model(config)  # so that a wrong setting is told before anything is read
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    corpora = read_corpora(
        config.data, validation=config.validation, test=config.test, share=config.share,
        skip_bad_files=run.skip_bad_lines,
    )  # fmt: skip
    print(describe(corpora), file=sys.stderr)
    task = _task(config, run, corpora, route)
    described = _described(config, run, corpora)
    settings = identity(config, run, described["fingerprints"], use=("stride",))
    windows = {"context": config.block, "stride": config.stride or config.block}

    def evaluate() -> Metrics:
        held = corpora.validation if config.scored == "validation" else corpora.test
        return {} if held is None else Generator(directory.load(run.out), route).score(held, **windows).metrics

    def flops(summary: Summary) -> float:
        return costs.flops(task.model, config.block)["training"] * summary.tokens / config.block

    return carry_out(
        run, task, replace(config.training, width=task.model.config.width), route=route, settings=settings,
        data=described, evaluate=evaluate, flops=flops, windows=windows,
    )  # fmt: skip


def _described(config: LanguageModellingConfig, run: Run, corpora: Corpora) -> dict[str, Any]:
    """For result.json: enough to find the test data again, and to see whether they are the same."""
    known = {name: texts for name, texts in zip(Corpora._fields, corpora, strict=True) if texts is not None}
    paths = {"path": config.data, "validation": config.validation, "test": config.test}
    return {
        **{name: None if path is None else str(Path(path).absolute()) for name, path in paths.items()},
        "share": config.share,
        "skip_bad_files": run.skip_bad_lines,
        "scored": config.scored,
        "fingerprints": {name: fingerprint(texts.texts)[:16] for name, texts in known.items()},
        "bytes": {name: texts.bytes for name, texts in known.items()},
    }


def _task(config: LanguageModellingConfig, run: Run, corpora: Corpora, route: Route) -> LanguageModellingTask:
    """Vocabulary and model: new ones, or those of the model to start from."""
    torch.manual_seed(config.training.seed)
    if run.init is None:
        tokenizer = _vocabulary(config, corpora)
        end = tokenizer.token_to_id(END_OF_TEXT)
        model = build(
            preset(config.preset, "gpt2", "gpt", **{**_sizes(config, tokenizer.get_vocab_size(), end), **config.model})
        )
    else:
        model, tokenizer = _continued(run)
        end = model.config.end if model.config.end in tokenizer.get_vocab().values() else None
    cache = run.out / "state" / "tokens"
    train, validation = (token_stream(texts.texts, tokenizer, end, cache) for texts in corpora[:2])
    print(f"{len(train):,} training tokens, {len(validation):,} of validation data", file=sys.stderr)
    return LanguageModellingTask(
        model, tokenizer, train, validation, corpora.validation.bytes, route=route, block=config.block,
        rows=config.rows, random=config.random, seed=config.training.seed,
    )  # fmt: skip


def _vocabulary(config: LanguageModellingConfig, corpora: Corpora) -> Tokenizer:
    if config.tokenizer == "character":
        # of the test data too: a character without an id has no probability that could be scored
        return train_character(text for texts in corpora if texts is not None for text in texts.texts)
    with told_warnings():
        tokenizer = train_byte_bpe(corpora.train.texts, config.vocabulary)
    return tokenizer


def _sizes(config: LanguageModellingConfig, vocabulary: int, end: int | None) -> dict[str, Any]:
    return {"vocab": vocabulary, "end": end, "max_positions": config.block}


def planned_model(config: LanguageModellingConfig) -> GPT:
    """The model, without memory, as it will be if the text yields the whole vocabulary that is asked for."""
    with torch.device("meta"):
        return build(
            preset(config.preset, "gpt2", "gpt", **{**_sizes(config, config.vocabulary, None), **config.model})
        )


def _continued(run: Run) -> tuple[GPT, Tokenizer]:
    """The model to start from; of the user's settings, those that do not change its weights (dropout) are applied."""
    assert run.init is not None
    if fixed := {"preset", "tokenizer", "vocabulary"} & set(run.overrides):
        raise ValueError(f"{', '.join(sorted(fixed))}: given by the model to start from, {run.init}; leave it out")
    loaded = directory.load(run.init)
    if not isinstance(loaded.model, GPT):
        raise ValueError(f"{run.init}: a {loaded.family} model; {run.recipe} starts from GPT's or GPT-2's weights")
    if loaded.tokenizer is None:
        raise ValueError(f"{run.init} has no tokenizer.json, so training cannot continue from it")
    given = {key.removeprefix("model."): value for key, value in run.overrides.items() if key.startswith("model.")}
    model, new = adapt(loaded.model, **given)
    if new:
        raise ValueError(f"{run.init} has no weights such as these settings ask for: {', '.join(new[:5])}")
    print(f"starting from {run.init}: all {len(model.state_dict())} tensors are its own, none is new", file=sys.stderr)
    return model, loaded.tokenizer
