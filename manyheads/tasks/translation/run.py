"""Training a translator: corpus -> vocabulary -> model -> task, and its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.corpora import ParallelSource
from manyheads.data.text.store import TokenStore
from manyheads.data.text.tokenizers import PAD, WORD_TOKENS, train_bpe, train_unigram, train_words
from manyheads.errors import UserError
from manyheads.files import fingerprint
from manyheads.models.presets import build, preset_for_data
from manyheads.models.transformer import Transformer
from manyheads.models.universal import Universal
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import dropouts, start
from manyheads.runs.run import Job, Run, carry_out, located, log_warnings
from manyheads.tasks.translation.predictor import Translator
from manyheads.tasks.translation.recipes import TranslationConfig
from manyheads.tasks.translation.task import Corpus, TranslationTask
from manyheads.training.record import Metrics

FAMILIES = ("transformer", "universal")  # of presets
Model = Transformer | Universal


def train(config: TranslationConfig, run: Run) -> dict[str, Any] | None:
    run.refuse(("training.width",), "it is the width of the model, so leave it out")
    if run.init is not None:
        dropouts(run)

    source = ParallelSource(
        **located(config, run), source=config.source, target=config.target, size=config.size,
        kept=run.out / "state" / "tokens",
    )  # fmt: skip

    def plan() -> Plan:
        model = planned_model(config) if run.init is None else _started(run)[0]
        return Plan(model, config.batch_tokens)

    def build(splits: SplitData[Pairs], compute: ComputeConfig) -> Job[Pairs]:
        task = _task(config, run, splits, compute)
        decoding: dict[str, Any] = {"beam": config.beam, "alpha": config.alpha, "truncate": config.truncate}

        def score(held: Pairs) -> Metrics:
            return Translator(directory.load(run.out), compute).evaluate(held, config.target, **decoding).metrics

        source, target = task.train.mean_lengths()
        flops = costs.flops(task.model, source, target)["training"] / target
        training = replace(config.training, width=task.model.config.width)
        return Job(task.model, training, score, task, flops=flops, record={"decoding": decoding})

    return carry_out(run, config, source, plan, build, beside=("beam", "alpha"))


def _task(config: TranslationConfig, run: Run, splits: SplitData[Pairs], compute: ComputeConfig) -> TranslationTask:
    """Vocabularies and model: new ones, or those of the model to start from."""
    vocabulary: Mapping[str, bytes] = {}
    if run.init is None:
        tokenizer, target_tokenizer = _vocabularies(config, splits.train)
        model = build(_model_config(config, tokenizer, target_tokenizer or tokenizer))
    else:
        model, loaded = _started(run)
        assert loaded.tokenizer is not None
        tokenizer, vocabulary = loaded.tokenizer, loaded.vocabulary
        target_tokenizer = None if loaded.target_tokenizer is tokenizer else loaded.target_tokenizer
    limit = min(config.max_length, model.config.max_positions)

    def tokenized(pairs: Pairs, limit: int = limit) -> Corpus:
        cache = run.out / "state" / "tokens"
        source, target = (
            fingerprint([side, *vocabulary.values()]) if vocabulary else None for side in ("source", "target")
        )
        sources = TokenStore.of(pairs.sources, tokenizer, cache, identity=source)
        targets = TokenStore.of(pairs.targets, target_tokenizer or tokenizer, cache, identity=target)
        return Corpus(sources, targets, limit).checked(pairs, truncate=config.truncate)

    if splits.test is not None:
        # too long a sentence is told now, not after the training
        tokenized(splits.test, model.config.max_positions)
    return TranslationTask(
        model, tokenizer, target_tokenizer, tokenized(splits.train), tokenized(splits.validation),
        compute=compute, batch_tokens=config.batch_tokens, smoothing=config.smoothing, seed=config.training.seed,
        vocabulary=vocabulary,
    )  # fmt: skip


def _vocabularies(config: TranslationConfig, pairs: Pairs) -> tuple[Tokenizer, Tokenizer | None]:
    """One for both sides, or two."""
    sizes = config.vocabularies
    with log_warnings():
        if config.tokenizer == "words":
            return (
                train_words(pairs.sources, sizes[0], config.source, begin=True),
                train_words(pairs.targets, sizes[1], config.target, begin=False),
            )
        learn = {"bpe": train_bpe, "unigram": train_unigram}[config.tokenizer]
        if config.joint:
            return learn(ConcatenatedTexts((pairs.sources, pairs.targets)), sizes[0]), None
        return learn(pairs.sources, sizes[0]), learn(pairs.targets, sizes[1])


def _model_config(config: TranslationConfig, source: Tokenizer, target: Tokenizer) -> Any:
    pad, end = target.token_to_id(PAD), target.encode("").ids[-1]
    start = target.token_to_id(WORD_TOKENS[2]) if config.tokenizer == "words" else pad
    sizes = {"source_vocab": source.get_vocab_size(), "target_vocab": target.get_vocab_size()}
    special = {"pad": pad, "end": end, "start": start, "source_pad": source.token_to_id(PAD)}
    return preset_for_data(config.preset, FAMILIES, config.model, {**sizes, **special})


def planned_model(config: TranslationConfig) -> Model:
    """The model, without memory, as it will be if the text yields the whole vocabulary that is asked for."""
    source, target = config.vocabularies
    special = {"pad": target - 1, "end": 0, "start": target - 1, "source_pad": source - 1}
    with torch.device("meta"):
        sizes = {"source_vocab": source, "target_vocab": target}
        return build(preset_for_data(config.preset, FAMILIES, config.model, {**sizes, **special}))


def _started(run: Run) -> tuple[Model, directory.Loaded]:
    """The model of `--init`, with the dropout that the user asks for, and what its directory holds."""
    model, loaded = start(run, Model, "a translator's weights", **dropouts(run))
    if loaded.tokenizer is None or loaded.target_tokenizer is None:
        raise UserError(f"{run.init} has no tokenizer, so training cannot continue from it")
    return model, loaded
