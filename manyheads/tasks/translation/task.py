"""Training of a translator: its corpus, its vocabulary, the model and its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.corpora import ParallelSource
from manyheads.data.text.bpe_dropout import BPEDropout
from manyheads.data.text.store import TokenStore
from manyheads.data.text.tokenizers import PAD, WORD_TOKENS, train_bpe, train_unigram, train_words
from manyheads.errors import UserError
from manyheads.files import JsonObject, fingerprint
from manyheads.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig, TranslationModel
from manyheads.models.presets import TRANSLATORS, build, preset_for_data
from manyheads.runs.checks import log_warnings
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import dropout_rates, start
from manyheads.runs.options import Run
from manyheads.runs.result import brief
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.translation.metrics import TRANSLATION_METRICS
from manyheads.tasks.translation.objective import Corpus, TranslationObjective
from manyheads.tasks.translation.predictor import Translator
from manyheads.tasks.translation.recipes import TranslationConfig
from manyheads.training.record import Metrics


class Translation(DataTask[TranslationConfig, Pairs]):
    """Task of a translator."""

    may_change = ("beam", "alpha")

    def check(self) -> None:
        self.run.refuse(("training.width",), "always the width of the model, so leave it out")
        if self.run.init is not None:
            dropout_rates(self.run)

    def planned_model(self) -> TranslationModel:
        source, target = self.config.vocabularies
        special = {"pad": target - 1, "end": 0, "start": target - 1, "source_pad": source - 1}
        sizes = {"source_vocab": source, "target_vocab": target, **special}
        with torch.device("meta"):
            return build(preset_for_data(self.config.preset, TRANSLATORS, self.config.model, sizes))

    def plan(self) -> Plan:
        model = self.planned_model() if self.run.init is None else _initial_model(self.run)[0]
        return Plan(model, self.config.batch_tokens)

    def data(self) -> ParallelSource:
        config = self.config
        return ParallelSource(
            **self.located, source=config.source, target=config.target, size=config.size,
            cache_folder=self.run.out / "state" / "tokens",
        )  # fmt: skip

    def build(self, splits: SplitData[Pairs], compute: ComputeConfig) -> Job:
        objective = _objective(self.config, self.run, splits, compute)
        source, target = objective.train.mean_lengths()
        flops = costs.training_flops(objective.model, source, target) / target
        training = replace(self.config.training, width=objective.model.config.width)
        return Job(objective.model, training, objective, flops=flops, record={"decoding": self._decoding})

    @property
    def _decoding(self) -> JsonObject:
        return {"beam": self.config.beam, "alpha": self.config.alpha, "truncate": self.config.truncate}

    def score(self, held: Pairs, compute: ComputeConfig) -> Metrics:
        translator = Translator(directory.load(self.run.out), compute)
        return translator.evaluate(held, self.config.target, **self._decoding).metrics

    def example(self, held: Pairs) -> list[str]:
        return ["translate", brief(held.sources)]


def _objective(
    config: TranslationConfig, run: Run, splits: SplitData[Pairs], compute: ComputeConfig
) -> TranslationObjective:
    """Return the objective with a new model and vocabulary, or with those of the model that `--init` names."""
    vocabulary: Mapping[str, bytes] = {}
    if run.init is None:
        tokenizer, target_tokenizer = _train_tokenizers(config, splits.train)
        model = build(_model_config(config, tokenizer, target_tokenizer or tokenizer))
    else:
        model, loaded = _initial_model(run)
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
        # Tokenize all sentences before the training, so that sentences that are too long are reported immediately.
        tokenized(splits.test, model.config.max_positions)
    train = tokenized(splits.train)
    if config.bpe_dropout:
        of_source, of_target = (
            BPEDropout(words, config.bpe_dropout, config.training.seed)
            for words in (tokenizer, target_tokenizer or tokenizer)
        )
        train = replace(train, dropout=(of_source, of_target))
    return TranslationObjective(
        model, tokenizer, target_tokenizer, train, tokenized(splits.validation),
        compute=compute, batch_tokens=config.batch_tokens, smoothing=config.smoothing, seed=config.training.seed,
        vocabulary=vocabulary, decoding={"beam": config.beam, "alpha": config.alpha},
        references=splits.validation.targets if config.training.metric in TRANSLATION_METRICS else None,
    )  # fmt: skip


def _train_tokenizers(config: TranslationConfig, pairs: Pairs) -> tuple[Tokenizer, Tokenizer | None]:
    """Train one tokenizer for both languages, or one for each language."""
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


def _model_config(config: TranslationConfig, source: Tokenizer, target: Tokenizer) -> EncoderDecoderConfig:
    pad, end = target.token_to_id(PAD), target.encode("").ids[-1]
    start = target.token_to_id(WORD_TOKENS[2]) if config.tokenizer == "words" else pad
    sizes = {"source_vocab": source.get_vocab_size(), "target_vocab": target.get_vocab_size()}
    special = {"pad": pad, "end": end, "start": start, "source_pad": source.token_to_id(PAD)}
    return preset_for_data(config.preset, TRANSLATORS, config.model, {**sizes, **special})


def _initial_model(run: Run) -> tuple[TranslationModel, directory.Loaded]:
    """Return the model that `--init` names, and the contents of the model directory.

    The dropout rates of the model are those in the settings of this run.
    """
    model, loaded = start(run, EncoderDecoder, "a translation model", **dropout_rates(run))
    if loaded.tokenizer is None or loaded.target_tokenizer is None:
        raise UserError(f"{run.init}: found no tokenizers, so training cannot start from this model")
    return model, loaded
