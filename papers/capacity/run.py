"""Training of language models of several kinds and sizes on equal batches."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from manyheads.analysis import costs
from manyheads.core.interface import Generates
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.splits import SplitData
from manyheads.data.readers.texts import Texts
from manyheads.files import JsonObject
from manyheads.models.gpt import GPT
from manyheads.models.presets import make_config
from manyheads.runs.ablation import Rows, ablate
from manyheads.runs.options import Run
from manyheads.runs.overrides import apply, from_mapping
from manyheads.runs.recipe import DataConfig
from manyheads.runs.run import carry_out
from manyheads.runs.task import Job
from manyheads.tasks.language.recipes import TINY_SHAKESPEARE
from manyheads.tasks.language.task import LanguageModeling
from manyheads.training.record import Metrics
from manyheads.training.run_log import read_metrics
from papers.capacity.models import (
    ConvolutionalLanguageModel,
    ConvolutionConfig,
    LSTMConfig,
    LSTMLanguageModel,
    initialize,
)
from papers.capacity.recipes import ROWS, CapacityConfig, RowConfig
from papers.unsaved import Unsaved

COLUMNS = {"loss": "loss", "bits_per_byte": "bits/byte"}
SIZE_COLUMNS = {"parameters": "parameters", "non_embedding": "no embeddings", "flops": "FLOPs"}


class RowTask(LanguageModeling):
    """Task of one model. Its final metrics are those of the last validation, which reads the whole validation split."""

    config: RowConfig

    def new_model(self, vocabulary: int, end: int | None) -> Generates[Any, Any]:
        settings, known = {"max_positions": self.config.block, **self.config.model}, {"vocab": vocabulary}
        if self.config.architecture == "lstm":
            return LSTMLanguageModel(make_config(LSTMConfig, settings, known))
        if self.config.architecture == "convolution":
            return ConvolutionalLanguageModel(make_config(ConvolutionConfig, settings, known))
        model = super().new_model(vocabulary, end)
        assert isinstance(model, GPT)
        initialize(model)
        return model

    def build(self, splits: SplitData[Texts], compute: ComputeConfig) -> Job:
        job = super().build(splits, compute)
        job.record |= {"non_embedding": costs.active_parameters(job.model)}
        if not isinstance(job.model, GPT):
            job.objective = Unsaved(job.objective)
        return job

    def calibrate(self, validation: Texts, compute: ComputeConfig) -> JsonObject:
        """Return the loss of each validation."""
        entries = [entry for entry in read_metrics(self.run.out / "metrics.jsonl") if "validation" in entry]
        return {"curve": [{"step": entry["step"], "loss": entry["validation"]["loss"]} for entry in entries]}

    def score(self, held: Texts, compute: ComputeConfig) -> Metrics:
        """Return no further metrics: the last validation reads the whole split."""
        return {}


def train(config: CapacityConfig, run: Run) -> str | JsonObject | None:
    """Train the model of every row, and return the table of results. The user's settings override the rows'."""
    run.refuse(("training.minutes", "training.patience"), "all models read the same text: set training.steps")
    run.refuse(("training.keep_every", "training.keep_steps"), "only the Transformer can be saved as a model: omit it")
    run.refuse(("scored", "test"), "the validation split is scored: omit it", changed_only=True)
    base = _row_config(config)
    rows: Rows = {
        name: {key: value for key, value in ROWS[name].items() if key not in run.given} for name in config.rows
    }
    if run.dry_run:
        first = config.rows[0]  # The data are read only once.
        runs = {name: replace(run, reads=run.reads and name == first) for name in rows}
        return {
            "rows": {name: _estimate(apply(base, from_mapping(changes)), runs[name]) for name, changes in rows.items()}
        }
    # The rows do not depend on each other.
    overrides = {key: value for key, value in run.overrides.items() if key != "rows"}
    return ablate(rows, base, replace(run, overrides=overrides), _train_row, COLUMNS, SIZE_COLUMNS)


def _row_config(config: CapacityConfig) -> RowConfig:
    """Return the settings of all rows, without the model."""
    data = {f.name: getattr(config, f.name) for f in fields(DataConfig)}
    return RowConfig(
        **data, share=config.share, tokenizer="character", vocabulary=TINY_SHAKESPEARE.vocabulary,
        model={"dropout": config.dropout}, block=config.block, rows=config.blocks, training=config.training,
    )  # fmt: skip


def _train_row(config: RowConfig, run: Run) -> JsonObject | None:
    """Train the model of a row. Its result.json names the row, as users type it, instead of the row's settings."""
    typed = {key: value for key, value in run.overrides.items() if key in run.given}
    return carry_out(_task(config, replace(run, overrides={**typed, "rows": config.row})))


def _task(config: RowConfig, run: Run) -> RowTask:
    if config.architecture == "transformer":
        rates = dict.fromkeys(("attention_dropout", "embedding_dropout"), config.model["dropout"])
        config = replace(config, model={**config.model, **rates})
    return RowTask(config, run)


def _estimate(config: RowConfig, run: Run) -> JsonObject:
    """Return the size of a row and the estimated duration of its training."""
    task = _task(config, run)
    plan, counted = carry_out(task) or {}, costs.active_parameters(task.planned_model())
    return {"parameters": plan["parameters"], "non_embedding": counted, "hours": plan["estimate"]["hours"]}
