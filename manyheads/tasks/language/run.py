"""Training a language model: texts -> vocabulary -> model -> task, and its scores."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.splits import SplitData
from manyheads.data.readers.texts import Texts
from manyheads.data.sources.running_text import TextSource
from manyheads.data.text.store import TokenStream
from manyheads.data.text.tokenizers import END_OF_TEXT, load_tokenizer, train_byte_bpe, train_character
from manyheads.errors import UserError
from manyheads.files import fingerprint, write
from manyheads.models.gpt import GPT
from manyheads.models.presets import build, preset_for_data
from manyheads.models.universal import UniversalSequence
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import adapted, dropouts, opened, tokenizer_of
from manyheads.runs.run import Job, Run, carry_out, located, log_warnings
from manyheads.tasks.language.predictor import LanguageModel
from manyheads.tasks.language.recipes import LanguageModellingConfig
from manyheads.tasks.language.task import LanguageModellingTask
from manyheads.training.record import Metrics

logger = logging.getLogger(__name__)

Model = GPT | UniversalSequence
LEARNED_FROM = 2**26  # bytes of text that a vocabulary is learned from at most


def train(config: LanguageModellingConfig, run: Run) -> dict[str, Any] | None:
    kept = run.out / "state" / "tokens"
    source = TextSource(**located(config, run), share=config.share, column=config.column, kept=kept)

    def plan() -> Plan:
        model = planned_model(config) if run.init is None else _started(run)[0]
        return Plan(model, config.rows * config.block)

    def build(splits: SplitData[Texts], compute: ComputeConfig) -> Job[Texts]:
        task = _task(config, run, splits, compute)
        windows = {"context": config.block, "stride": config.stride or config.block}

        def score(held: Texts) -> Metrics:
            return LanguageModel(directory.load(run.out), compute).score(held, **windows).metrics

        flops = costs.flops(task.model, config.block)["training"] / config.block
        training = replace(config.training, width=task.model.config.width)
        return Job(task.model, training, score, task, flops=flops, record={"windows": windows, "scored": config.scored})

    return carry_out(run, config, source, plan, build, beside=("stride", "column"))


def _task(
    config: LanguageModellingConfig, run: Run, splits: SplitData[Texts], compute: ComputeConfig
) -> LanguageModellingTask:
    """Vocabulary and model: new ones, or those of the model to start from."""
    if run.init is None:
        tokenizer = _vocabulary(config, splits, run.out / "state" / "tokens")
        end = tokenizer.token_to_id(END_OF_TEXT)
        model = build(_model_config(config, tokenizer.get_vocab_size(), end))
    else:
        model, tokenizer = _started(run)
        end = model.config.end if model.config.end in tokenizer.get_vocab().values() else None
    cache = run.out / "state" / "tokens"
    train, validation = (TokenStream.of(texts, tokenizer, end, cache) for texts in (splits.train, splits.validation))
    logger.info(f"{len(train):,} training tokens, {len(validation):,} of validation data")
    return LanguageModellingTask(
        model, tokenizer, train, validation, splits.validation.bytes, compute=compute, block=config.block,
        rows=config.rows, random=config.random, seed=config.training.seed,
    )  # fmt: skip


def _vocabulary(config: LanguageModellingConfig, splits: SplitData[Texts], cache: Path) -> Tokenizer:
    """Learned once, from no more than a sample of a large corpus."""
    if config.tokenizer == "character":
        # of the test data too: a character without an id has no probability that could be scored
        return train_character(texts.facts.alphabet for texts in splits.known.values())
    train = splits.train
    path = cache / f"{fingerprint([train.facts.fingerprint, str(config.vocabulary), str(LEARNED_FROM)])}.json"
    if path.is_file():
        return load_tokenizer(path)
    with log_warnings():
        tokenizer = train_byte_bpe(train.sample(LEARNED_FROM), config.vocabulary)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, tokenizer.to_str())
    return tokenizer


def planned_model(config: LanguageModellingConfig) -> Model:
    """The model, without memory, as it will be if the text yields the whole vocabulary that is asked for."""
    with torch.device("meta"):
        return build(_model_config(config, config.vocabulary, None))


def _model_config(config: LanguageModellingConfig, vocabulary: int, end: int | None) -> Any:
    if config.model.get("head", "decoder") != "decoder":
        raise UserError(
            f"model.head is {config.model['head']!r}: a language model must not see what follows: expected decoder"
        )
    families = ("gpt2", "gpt", "universal-sequence")
    settings = {"max_positions": config.block, **config.model}
    return preset_for_data(config.preset, families, settings, {"vocab": vocabulary, "end": end})


def _started(run: Run) -> tuple[Model, Tokenizer]:
    """The model of `--init`, with the dropout that the user asks for."""
    rates = dropouts(run)
    loaded = opened(run, Model, "GPT's, GPT-2's or a Universal Transformer's weights")
    if isinstance(loaded.model, UniversalSequence):
        if loaded.model.config.head != "decoder":
            raise UserError(f"{run.init}: an encoder, which sees what follows: {run.recipe} starts from a decoder")
        model = adapted(run, loaded, **rates)
    else:
        model = adapted(run, loaded, head="language", labels=(), pad=None, **rates)
    return model, tokenizer_of(loaded)
