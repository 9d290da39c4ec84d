"""Task of extractive question answering: the questions, the model and its scores."""

from __future__ import annotations

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
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.answering.objective import AnsweringObjective
from manyheads.tasks.answering.predictor import QuestionAnswerer
from manyheads.tasks.answering.recipes import AnsweringConfig
from manyheads.training.record import Metrics


class Answering(DataTask[AnsweringConfig, Questions]):
    """Task of extractive question answering."""

    def planned_model(self) -> Bert:
        with torch.device("meta"):  # a model that stands for the initial model in cost estimates
            return build(preset_for_data(self.config.preset, ("bert",), self.config.model, {"head": "question"}))

    def plan(self) -> Plan:
        model = self.planned_model() if self.run.init is None else start_bert(self.run, "question")[0]
        return Plan(model, self.config.batch_tokens)

    def data(self) -> QuestionSource:
        return QuestionSource(**self.located)

    def build(self, splits: SplitData[Questions], compute: ComputeConfig) -> Job:
        config = self.config
        model, tokenizer = start_bert(self.run, "question")
        self._limits = {
            "max_length": min(config.max_length, model.config.max_positions), "stride": config.stride,
            "max_query": config.max_query,
        }  # fmt: skip
        objective = AnsweringObjective(
            model, tokenizer, splits.train, splits.validation, compute=compute, batch_tokens=config.batch_tokens,
            seed=config.training.seed, **self._limits,
        )  # fmt: skip
        flops = costs.training_flops(model, objective.mean_length)
        return Job(model, config.training, objective, flops=flops, record={"reading": self._limits})

    def score(self, held: Questions, compute: ComputeConfig) -> Metrics:
        return QuestionAnswerer(directory.load(self.run.out), compute, self._limits).evaluate(held).metrics

    def example(self, held: Questions) -> list[str]:
        question = held.items[0]
        return ["answer", "--question", question.question, "--context", question.context]
