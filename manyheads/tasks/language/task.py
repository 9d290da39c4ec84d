"""Training of a language model: its texts, its vocabulary, the model and its scores."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.config import Config
from manyheads.core.interface import Generates
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
from manyheads.runs.checks import log_warnings
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import adapted, dropout_rates, opened, tokenizer_of
from manyheads.runs.options import Run
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.language.objective import LanguageModelingObjective
from manyheads.tasks.language.predictor import LanguageModel
from manyheads.tasks.language.recipes import LanguageModelingConfig
from manyheads.training.record import Metrics

logger = logging.getLogger(__name__)

Model = GPT | UniversalSequence
MAX_VOCABULARY_BYTES = 2**26  # maximum number of bytes of text that the tokenizer is trained on


class LanguageModeling(DataTask[LanguageModelingConfig, Texts]):
    """Task of a language model."""

    may_change = ("stride", "column")

    def planned_model(self) -> Generates[Any, Any]:
        with torch.device("meta"):
            return self.new_model(self.config.vocabulary, None)

    def new_model(self, vocabulary: int, end: int | None) -> Generates[Any, Any]:
        """Return a new model for the size of a vocabulary. `end` is the id of the token between two texts."""
        model: Model = build(_model_config(self.config, vocabulary, end))
        return model

    def plan(self) -> Plan:
        model = self.planned_model() if self.run.init is None else _initial_model(self.run)[0]
        return Plan(model, self.config.rows * self.config.block)

    def data(self) -> TextSource:
        cache = self.run.out / "state" / "tokens"
        return TextSource(**self.located, share=self.config.share, column=self.config.column, cache_folder=cache)

    def build(self, splits: SplitData[Texts], compute: ComputeConfig) -> Job:
        config = self.config
        objective = _objective(self, splits, compute)
        flops = costs.training_flops(objective.model, config.block) / config.block
        training = replace(config.training, width=objective.model.config.width)
        record = {"windows": self._windows, "scored": config.scored}
        return Job(objective.model, training, objective, flops=flops, record=record)

    @property
    def _windows(self) -> dict[str, int]:
        return {"context": self.config.block, "stride": self.config.stride or self.config.block}

    def score(self, held: Texts, compute: ComputeConfig) -> Metrics:
        return LanguageModel(directory.load(self.run.out), compute).score(held, **self._windows).metrics

    def example(self, held: Texts) -> list[str]:
        return ["generate", " ".join(next(held.parts()).content.split()[:4])]


def _objective(task: LanguageModeling, splits: SplitData[Texts], compute: ComputeConfig) -> LanguageModelingObjective:
    """Return the objective with a new model and vocabulary, or with those of the model that `--init` names."""
    config, run = task.config, task.run
    model: Generates[Any, Any]
    if run.init is None:
        tokenizer = _train_tokenizer(config, splits, run.out / "state" / "tokens")
        end = tokenizer.token_to_id(END_OF_TEXT)
        model = task.new_model(tokenizer.get_vocab_size(), end)
    else:
        model, tokenizer = _initial_model(run)
        end = model.config.end if model.config.end in tokenizer.get_vocab().values() else None
    cache = run.out / "state" / "tokens"
    train, validation = (TokenStream.of(texts, tokenizer, end, cache) for texts in (splits.train, splits.validation))
    logger.info(f"{len(train):,} training tokens, {len(validation):,} validation tokens")
    return LanguageModelingObjective(
        model, tokenizer, train, validation, splits.validation.bytes, compute=compute, block=config.block,
        rows=config.rows, random=config.random, seed=config.training.seed,
    )  # fmt: skip


def _train_tokenizer(config: LanguageModelingConfig, splits: SplitData[Texts], cache: Path) -> Tokenizer:
    """Train the tokenizer, or load it from the cache.

    For a large corpus, the tokenizer is trained on a sample of the text.
    """
    if config.tokenizer == "character":
        # Include the characters of the test data, because a test text with an unknown character could not be scored.
        return train_character(texts.facts.alphabet for texts in splits.known.values())
    train = splits.train
    path = cache / f"{fingerprint([train.facts.fingerprint, str(config.vocabulary), str(MAX_VOCABULARY_BYTES)])}.json"
    if path.is_file():
        return load_tokenizer(path)
    with log_warnings():
        tokenizer = train_byte_bpe(train.sample(MAX_VOCABULARY_BYTES), config.vocabulary)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, tokenizer.to_str())
    return tokenizer


def _model_config(config: LanguageModelingConfig, vocabulary: int, end: int | None) -> Config:
    if config.model.get("head", "decoder") != "decoder":
        raise UserError(f"model.head is {config.model['head']!r}: expected decoder, which hides later tokens")
    families = ("gpt2", "gpt", "universal-sequence")
    settings = {"max_positions": config.block, **config.model}
    return preset_for_data(config.preset, families, settings, {"vocab": vocabulary, "end": end})


def _initial_model(run: Run) -> tuple[Model, Tokenizer]:
    """Return the model that `--init` names, with the dropout rates of the settings, and its tokenizer."""
    rates = dropout_rates(run)
    loaded = opened(run, Model, "a GPT, a GPT-2 or a Universal Transformer")
    if isinstance(loaded.model, UniversalSequence):
        if loaded.model.config.head != "decoder":
            raise UserError(
                f"{run.init}: found an encoder, which sees later tokens; {run.recipe} starts from a decoder"
            )
        model = adapted(run, loaded, **rates)
    else:
        model = adapted(run, loaded, head="language", labels=(), pad=None, **rates)
    return model, tokenizer_of(loaded)
