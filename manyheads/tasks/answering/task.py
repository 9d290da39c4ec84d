"""Training run for extractive question answering: loading of data and model, training, and final scores."""

from __future__ import annotations

from typing import Any

import torch

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.splits import SplitData
from manyheads.data.readers.squad import Questions
from manyheads.data.sources.corpora import QuestionSource
from manyheads.models.bert import Bert
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import start_bert
from manyheads.runs.run import Job, Run, carry_out, located
from manyheads.tasks.answering.objective import AnsweringObjective
from manyheads.tasks.answering.predictor import QuestionAnswerer
from manyheads.tasks.answering.recipes import AnsweringConfig
from manyheads.training.record import Metrics


def train(config: AnsweringConfig, run: Run) -> dict[str, Any] | None:
    source = QuestionSource(**located(config, run))

    def plan() -> Plan:
        model = planned_model(config) if run.init is None else start_bert(run, "question")[0]
        return Plan(model, config.batch_tokens)

    def build(splits: SplitData[Questions], compute: ComputeConfig) -> Job[Questions]:
        model, tokenizer = start_bert(run, "question")
        limits = {
            "max_length": min(config.max_length, model.config.max_positions), "stride": config.stride,
            "max_query": config.max_query,
        }  # fmt: skip
        task = AnsweringObjective(
            model, tokenizer, splits.train, splits.validation, compute=compute, batch_tokens=config.batch_tokens,
            seed=config.training.seed, **limits,
        )  # fmt: skip

        def score(questions: Questions) -> Metrics:
            return QuestionAnswerer(directory.load(run.out), compute, limits).evaluate(questions).metrics

        flops = costs.flops(model, task.mean_length)["training"]
        return Job(model, config.training, score, task, flops=flops, record={"reading": limits})

    return carry_out(run, config, source, plan, build)


def planned_model(config: AnsweringConfig) -> Bert:
    """Return a model on the meta device (without memory), which stands for the initial model in cost estimates."""
    with torch.device("meta"):
        return build(preset_for_data(config.preset, ("bert",), config.model, {"head": "question"}))
