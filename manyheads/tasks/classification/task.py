"""Task of the text classifiers: the texts, the vocabulary, the model and its scores."""

from __future__ import annotations

from dataclasses import replace

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.core.runtime import ComputeConfig
from manyheads.data.embedded.language_codes import LANGUAGES
from manyheads.data.readers.labeled import REGRESSION_LABELS, Labeled, labels_of
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.corpora import LabeledSource
from manyheads.data.text.tokenizers import PAD, train_bpe, train_word_level
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.models.bert import Bert
from manyheads.models.elmo import Elmo
from manyheads.models.gpt import GPT
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.checks import log_warnings
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import adapted, dropout_rates, fine_tuning, opened, start_tuned, tokenizer_of
from manyheads.runs.options import Run
from manyheads.runs.result import brief
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.classification.objective import ClassificationObjective, padding_id
from manyheads.tasks.classification.predictor import Classifier
from manyheads.tasks.classification.recipes import ClassificationConfig
from manyheads.tasks.classification.special_tokens import START, add_classifier_tokens
from manyheads.tasks.classification.teacher import TextTeacher
from manyheads.tasks.distillation import (
    compare_with_teacher,
    refuse_without_teacher,
    warn_of_equal_labels,
    weights_hash,
)
from manyheads.tasks.encoding import encode
from manyheads.tasks.evaluation import EvaluationResult
from manyheads.tasks.targets import build_target
from manyheads.training.record import Metrics

FAMILIES = ("text-classifier", "sequence-baseline")


class Classification(DataTask[ClassificationConfig, Labeled]):
    """Task of a classifier of texts, or of pairs of texts."""

    def check(self) -> None:
        _check_unused_options(self.config, self.run)
        self._teacher = None if self.config.teacher is None else TextTeacher.load(self.config)

    def planned_model(self) -> Model[Config]:
        config = self.config
        if config.preset is None:
            raise UserError("this recipe fine-tunes a model: give the model to start from with --init MODEL")
        labels = config.names or (tuple(LANGUAGES) if config.data is None else _expected_labels(config))
        with torch.device("meta"):
            return _model(config, labels, config.vocabulary, 0)

    def plan(self) -> Plan:
        config, run = self.config, self.run
        model = self.planned_model() if run.init is None else _initial_model(config, run, _expected_labels(config))[0]
        return Plan(model, config.batch_tokens)

    def data(self) -> LabeledSource:
        config = self.config
        return LabeledSource(
            **self.located, columns=config.columns, names=config.names, size=config.size, sample=config.items,
            target=config.target,
        )  # fmt: skip

    def build(self, splits: SplitData[Labeled], compute: ComputeConfig) -> Job:
        config, run = self.config, self.run
        _check_pairs(config, run, splits.train)
        labels = config.names or labels_of(splits.train.labels, splits.train.target)
        self._target = build_target(config, labels, splits.train)
        if run.init is None:
            model, tokenizer = _build_model(config, splits.train, labels, self._teacher)
        else:
            model, tokenizer = _initial_model(config, run, labels)
        limit = model.max_positions
        # Tokenize the test texts before the training, so that texts that are too long are reported immediately.
        if splits.test is not None and not config.truncate:
            encode(
                tokenizer, splits.test.texts, splits.test.second_texts, limit, truncate=False, where=splits.test.place
            )
        assert limit is not None
        length = min(config.max_length or limit, limit)
        if self._teacher is not None:
            self._teacher.check(config, labels, tokenizer, length, splits.train)
        objective = ClassificationObjective(
            model, tokenizer, splits.train, splits.validation, compute=compute, batch_tokens=config.batch_tokens,
            batch_items=config.batch_items, max_length=length, truncate=config.truncate,
            auxiliary=config.auxiliary, seed=config.training.seed, target=self._target,
            balanced=config.sampling is not None, teacher=self._teacher,
        )  # fmt: skip
        training = fine_tuning(config.training, run, config.tuned)
        identity: JsonObject = {"labels": list(labels)}
        record = {"truncate": config.truncate, **config.target_record}
        if self._teacher is not None:
            identity["teacher_weights"] = weights_hash(self._teacher.model)
            self._distillation = record["distillation"] = {"differing_labels": objective.differing_labels()}
            warn_of_equal_labels(self._distillation["differing_labels"], config, "texts")
        return Job(model, training, objective, flops=_flops(objective), identity=identity, record=record)

    def calibrate(self, validation: Labeled, compute: ComputeConfig) -> JsonObject:
        if not self._target.calibrates:
            return {}
        self._target = self._target.calibrated_by(self._outcome(validation, compute))
        return {"threshold": self._target.threshold}

    def score(self, held: Labeled, compute: ComputeConfig) -> Metrics:
        result = self._outcome(held, compute)
        if self.config.teacher is not None:
            taught = Classifier(directory.load(self.config.teacher), compute)
            told = taught.evaluate(held, truncate=self.config.truncate)
            self._distillation.update(compare_with_teacher(told, result, "accuracy"))
        return result.metrics

    def _outcome(self, data: Labeled, compute: ComputeConfig) -> EvaluationResult:
        classifier = Classifier(directory.load(self.run.out), compute)
        classifier.target = replace(self._target, weights=None)
        return classifier.evaluate(data, truncate=self.config.truncate)

    def example(self, held: Labeled) -> list[str]:
        if held.second_texts is None:
            return ["classify", brief(held.texts)]
        return ["classify", brief(held.texts[:1]), "--pair", brief(held.second_texts[:1])]


def _flops(objective: ClassificationObjective) -> float:
    """Return the number of training FLOPs per item."""
    model = objective.model
    flops = costs.training_flops(model, round(objective.tokens_per_item))
    if objective.auxiliary:  # The auxiliary language-modeling loss predicts the next token at every position.
        assert isinstance(model, GPT)
        c = model.config
        flops += costs.TRAINING_PASSES * 2 * (objective.tokens_per_item - 1) * c.width * c.vocab
    return flops


def _initial_model(config: ClassificationConfig, run: Run, labels: tuple[str, ...]) -> tuple[Model[Config], Tokenizer]:
    """Return the BERT, GPT or ELMo that `--init` names, with a new classification head, and the model's tokenizer."""
    assert run.init is not None
    rates = config.model if config.preset is None else {}
    if directory.read_settings(directory.resolve(run.init))[0].module is Bert:
        run.refuse(("auxiliary",), f"the weight of a language model's loss, but {run.init} is none: leave it out")
        rates = {**rates, "target": config.target}
        return start_tuned(run, "sequence", labels, config.tuned, scratch=config.scratch, rates=rates)
    loaded = opened(run, (GPT, Elmo), "a BERT, a GPT or an ELMo")
    settings = {"head": "sequence", "labels": labels, "target": config.target, **rates, **dropout_rates(run)}
    if isinstance(loaded.model, Elmo):
        run.refuse(("auxiliary", "tuned"), f"no effect on an ELMo, such as {run.init}: leave it out")
        elmo = adapted(run, loaded, **settings)
        return (Elmo(elmo.config) if config.scratch else elmo), tokenizer_of(loaded)
    run.refuse(("tuned",), f"selects the layers of a BERT, but {run.init} is a GPT: leave it out")
    tokenizer, end = add_classifier_tokens(tokenizer_of(loaded)), loaded.model.config.end
    settings |= {
        "vocab": max(loaded.model.config.vocab, max(tokenizer.get_vocab().values()) + 1),
        # token id that the tokenizer never puts at the end of an input for this classifier
        "pad": tokenizer.token_to_id(START) if end is None else end,
    }  # fmt: skip
    model = adapted(run, loaded, **settings)
    return (GPT(model.config) if config.scratch else model), tokenizer


def _expected_labels(config: ClassificationConfig) -> tuple[str, ...]:
    """Return labels for a plan, before the data are read."""
    return REGRESSION_LABELS if config.target == "regression" else config.names or ("0", "1")


def _check_unused_options(config: ClassificationConfig, run: Run) -> None:
    """Raise UserError if the user set an option that has no effect in this run."""
    refuse_without_teacher(config, run)
    if run.init is not None:
        return
    if config.teacher is not None:
        run.refuse(("vocabulary", "tokens"), f"determined by the teacher, {config.teacher}; omit it")
    run.refuse(("tuned", "scratch", "auxiliary"), "no effect without a model to start from: add --init MODEL")


def _check_pairs(config: ClassificationConfig, run: Run, train: Labeled) -> None:
    """Raise UserError if the data have pairs of texts but the recipe reads single texts, or vice versa."""
    if run.recipe == "sentence-pair" and train.second_texts is None:
        raise UserError(
            f"{config.data}: expected pairs of texts, found single texts: give the second column as columns.pair=NAME"
        )
    if run.recipe == "single-sentence" and train.second_texts is not None:
        raise UserError(
            f"{config.data}: expected single texts, found pairs. "
            "Use the recipe sentence-pair, or name one column with columns.text=NAME."
        )


def _build_model(
    config: ClassificationConfig, train: Labeled, labels: tuple[str, ...], teacher: TextTeacher | None
) -> tuple[Model[Config], Tokenizer]:
    """Return a new model and its tokenizer, which is learned from the training texts or is the teacher's."""
    if train.second_texts is not None:
        raise UserError(f"{config.data}: pairs of texts require a pretrained model: add --init MODEL")
    if teacher is not None:
        tokenizer = teacher.tokenizer
        return _model(config, labels, tokenizer.get_vocab_size(), padding_id(teacher.model)), tokenizer
    with log_warnings():
        learn = train_word_level if config.tokens == "words" else train_bpe
        tokenizer = learn(train.texts, config.vocabulary)
    pad = next(i for i in map(tokenizer.token_to_id, ("[PAD]", PAD)) if i is not None)
    return _model(config, labels, tokenizer.get_vocab_size(), pad), tokenizer


def _model(config: ClassificationConfig, labels: tuple[str, ...], size: int, pad: int) -> Model[Config]:
    assert config.preset is not None
    decided = {"vocab": size, "labels": labels, "pad": pad, "target": config.target}
    return build(preset_for_data(config.preset, FAMILIES, config.model, decided))
