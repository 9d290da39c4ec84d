"""Training run of a tagger: loading of sentences and vocabulary, training, and final scores."""

from __future__ import annotations

from typing import Any

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
from manyheads.models.bert import Bert
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import fine_tuning, start_tuned
from manyheads.runs.run import Job, Run, carry_out, located, log_warnings
from manyheads.tasks.tagging.objective import TaggingObjective
from manyheads.tasks.tagging.predictor import Tagger
from manyheads.tasks.tagging.recipes import TaggingConfig
from manyheads.training.record import Metrics

# tags of CoNLL-2003
ENTITIES = ("O", *(f"{begins}-{kind}" for kind in ("LOC", "MISC", "ORG", "PER") for begins in "BI"))


def train(config: TaggingConfig, run: Run) -> dict[str, Any] | None:
    if run.init is None:
        run.refuse(("tuned",), "no effect without a model to start from: add --init MODEL")

    source = TaggedSource(**located(config, run), locale=config.locale, size=config.size)

    def plan() -> Plan:
        model = planned_model(config) if run.init is None else start_tuned(run, "token", ENTITIES, config.tuned)[0]
        return Plan(model, config.batch_tokens)

    def build(splits: SplitData[Tagged], compute: ComputeConfig) -> Job[Tagged]:
        labels = tuple(splits.train.labels)
        if len(labels) < 2:
            raise UserError(f"{splits.train.file}: expected two or more different tags, found only {labels[0]}")
        model, tokenizer = (
            _build_model(config, splits.train, labels)
            if run.init is None
            else start_tuned(run, "token", labels, config.tuned)
        )
        limits = {"max_length": min(config.max_length, model.config.max_positions)}
        task = TaggingObjective(
            model, tokenizer, splits.train, splits.validation, compute=compute, batch_tokens=config.batch_tokens,
            seed=config.training.seed, **limits,
        )  # fmt: skip

        def score(tagged: Tagged) -> Metrics:
            return Tagger(directory.load(run.out), compute, limits).evaluate(tagged).metrics

        length = task.mean_length
        cost = costs.flops(model, length)
        # Frozen layers need no backward pass, which costs two thirds of the FLOPs.
        frozen = sum(n for part, n in cost["parts"].items() if part.startswith("bert."))
        flops = (cost["training"] - 2 * frozen) / length * task.tokens_per_word
        training = fine_tuning(config.training, run, config.tuned)
        return Job(model, training, score, task, flops=flops, record={"reading": limits})

    return carry_out(run, config, source, plan, build)


def planned_model(config: TaggingConfig) -> Bert:
    """Return the model on the meta device, for a vocabulary of the full requested size."""
    with torch.device("meta"):
        return build(_model_config(config, config.vocabulary, ENTITIES))


def _build_model(config: TaggingConfig, train: Tagged, labels: tuple[str, ...]) -> tuple[Bert, Tokenizer]:
    texts = [" ".join(words) for words in train.words]
    with log_warnings():
        tokenizer = train_wordpiece(texts, config.vocabulary, lowercase=config.lowercase)
    pad = tokenizer.token_to_id("[PAD]")
    return build(_model_config(config, tokenizer.get_vocab_size(), labels, pad=pad)), tokenizer


def _model_config(config: TaggingConfig, vocabulary: int, labels: tuple[str, ...], **special: Any) -> Any:
    decided = {"vocab": vocabulary, "head": "token", "labels": labels, **special}
    return preset_for_data(config.preset, ("bert",), config.model, decided)
