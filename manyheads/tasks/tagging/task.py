"""Task of the taggers: the sentences, the vocabulary, the model and its scores."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.conll import Tagged
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.corpora import TaggedSource
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.errors import UserError
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.checks import log_warnings
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import fine_tuning, start_tuned
from manyheads.runs.result import brief
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.tagging.objective import TaggingObjective
from manyheads.tasks.tagging.predictor import Tagger
from manyheads.tasks.tagging.recipes import TaggingConfig
from manyheads.training.record import Metrics

# tags of CoNLL-2003
ENTITIES = ("O", *(f"{begins}-{kind}" for kind in ("LOC", "MISC", "ORG", "PER") for begins in "BI"))


class Tagging(DataTask[TaggingConfig, Tagged]):
    """Task of a tagger."""

    def check(self) -> None:
        if self.run.init is None:
            self.run.refuse(("tuned",), "no effect without a model to start from: add --init MODEL")

    def planned_model(self) -> Bert:
        with torch.device("meta"):
            return build(_model_config(self.config, self.config.vocabulary, ENTITIES))

    def plan(self) -> Plan:
        if self.run.init is None:
            return Plan(self.planned_model(), self.config.batch_tokens)
        return Plan(start_tuned(self.run, "token", ENTITIES, self.config.tuned)[0], self.config.batch_tokens)

    def data(self) -> TaggedSource:
        return TaggedSource(**self.located, locale=self.config.locale, size=self.config.size)

    def build(self, splits: SplitData[Tagged], compute: ComputeConfig) -> Job:
        config, run, labels = self.config, self.run, tuple(splits.train.labels)
        if len(labels) < 2:
            raise UserError(f"{splits.train.file}: expected two or more different tags, found only {labels[0]}")
        model, tokenizer = (
            _build_model(config, splits.train, labels)
            if run.init is None
            else start_tuned(run, "token", labels, config.tuned)
        )
        self._limits = {"max_length": min(config.max_length, model.config.max_positions)}
        objective = TaggingObjective(
            model, tokenizer, splits.train, splits.validation, compute=compute, batch_tokens=config.batch_tokens,
            seed=config.training.seed, **self._limits,
        )  # fmt: skip
        length = objective.mean_length
        flops = costs.training_flops(model, length) / length * objective.tokens_per_word
        training = fine_tuning(config.training, run, config.tuned)
        return Job(model, training, objective, flops=flops, record={"reading": self._limits})

    def score(self, held: Tagged, compute: ComputeConfig) -> Metrics:
        return Tagger(directory.load(self.run.out), compute, self._limits).evaluate(held).metrics

    def example(self, held: Tagged) -> list[str]:
        return ["tag", brief(" ".join(words) for words in held.words)]


def _build_model(config: TaggingConfig, train: Tagged, labels: tuple[str, ...]) -> tuple[Bert, Tokenizer]:
    texts = [" ".join(words) for words in train.words]
    with log_warnings():
        tokenizer = train_wordpiece(texts, config.vocabulary, lowercase=config.lowercase)
    pad = tokenizer.token_to_id("[PAD]")
    return build(_model_config(config, tokenizer.get_vocab_size(), labels, pad=pad)), tokenizer


def _model_config(config: TaggingConfig, vocabulary: int, labels: tuple[str, ...], **special: int | None) -> BertConfig:
    decided = {"vocab": vocabulary, "head": "token", "labels": labels, **special}
    return preset_for_data(config.preset, ("bert",), config.model, decided)
