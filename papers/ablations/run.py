"""Training of a translator for each row: a Transformer that lacks a part."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError
from manyheads.models.encoder_decoder import TranslationModel
from manyheads.models.transformer import Transformer, TransformerConfig
from manyheads.runs.ablation import Rows, ablate
from manyheads.runs.options import Run
from manyheads.runs.overrides import apply, from_mapping
from manyheads.runs.run import carry_out
from manyheads.runs.task import Job
from manyheads.tasks.translation.objective import TranslationObjective
from manyheads.tasks.translation.predictor import Translator
from manyheads.tasks.translation.task import Translation
from manyheads.training.record import Metrics
from manyheads.training.state import load_weights, weights
from papers.ablations.parts import MODELS
from papers.ablations.recipes import RATE, ROWS, PartsConfig, RowConfig

WEIGHTS = "ablated.safetensors"  # file with the weights of a model that lacks a part
COLUMNS = {"bleu_moses_lc": "BLEU", "loss": "loss", "perplexity": "perplexity"}

logger = logging.getLogger("manyheads")  # The command prints the messages of this logger.


class AblatedObjective(TranslationObjective):
    """Training task of a model that lacks a part. It saves weights instead of a model directory."""

    def save(self, out: Path) -> str:
        directory.write_files(out, {WEIGHTS: weights(self.model)})
        return ""


class RowTranslation(Translation):
    """Task of the translator of a row, which may lack a part."""

    config: RowConfig

    @property
    def _lacks_part(self) -> bool:
        return self.config.without != "nothing"

    def planned_model(self) -> TranslationModel:
        planned = super().planned_model()
        with torch.device("meta"):
            return self._ablated(planned)

    def build(self, splits: SplitData[Pairs], compute: ComputeConfig) -> Job:
        job = super().build(splits, compute)
        objective = job.objective
        assert isinstance(objective, TranslationObjective)
        self._full, self._tokenizers = objective.model, (objective.tokenizer, objective.target_tokenizer)
        if not self._lacks_part:
            return job
        torch.manual_seed(self.config.training.seed)  # All rows begin with the same weights of their common parts.
        given: dict[str, Any] = {f.name: getattr(objective, f.name) for f in fields(objective)}
        objective = AblatedObjective(**given | {"model": self._ablated(objective.model)})
        source, target = objective.train.mean_lengths()
        flops = costs.training_flops(objective.model, source, target) / target
        logger.info(f"without {self.config.without}: the weights are saved as {WEIGHTS}, which no command opens")
        return replace(job, model=objective.model, objective=objective, flops=flops)

    def score(self, held: Pairs, compute: ComputeConfig) -> Metrics:
        if not self._lacks_part:
            return super().score(held, compute)
        model = self._ablated(self._full)
        load_weights(model, load_file(self.run.out / WEIGHTS))
        tokenizer, target_tokenizer = self._tokenizers
        loaded = directory.Loaded(model.eval(), tokenizer, target_tokenizer or tokenizer, "ablated", self.run.out)
        return Translator(loaded, compute).evaluate(held, self.config.target, **self._decoding).metrics

    def example(self, held: Pairs) -> list[str]:
        return [] if self._lacks_part else super().example(held)

    def _ablated(self, full: TranslationModel) -> TranslationModel:
        config = full.config
        if not isinstance(config, TransformerConfig):
            raise UserError(f"preset is {self.config.preset}: expected a preset of the Transformer, such as tiny")
        model: Transformer = MODELS[self.config.without](config)
        return model


def train(config: PartsConfig, run: Run) -> str | dict[str, Any] | None:
    """Train the model of every row, and return the table of results."""
    base, rows = config.base, rows_of(config, run.given)
    for changes in rows.values():  # An invalid row is reported before the first one is trained.
        RowTranslation(apply(base, from_mapping(changes)), run).planned_model()
    # The rows do not depend on each other, so a row may be resumed with other rows.
    overrides = {key: value for key, value in run.overrides.items() if key != "rows"}
    return ablate(rows, base, replace(run, overrides=overrides), _train_row, COLUMNS)


def rows_of(config: PartsConfig, given: Mapping[str, object]) -> Rows:
    """Return the settings of each row. Raises UserError if the user has set a setting of a row.

    A learning rate of the user applies to all rows.
    """
    rows: Rows = {
        name: {key: value for key, value in ROWS[name].items() if key != RATE or key not in given}
        for name in config.rows
    }
    for name, changes in rows.items():
        if both := [key for key in changes if key in given]:
            raise UserError(
                f"{', '.join(both)}: the row {name} sets this; leave out the setting, or the row with rows="
            )
    return rows


def _train_row(config: RowConfig, run: Run) -> dict[str, Any] | None:
    """Train the model of a row. Its result.json names the row, as users type it, instead of the row's settings."""
    if run.whole is not None:
        run = replace(run, overrides={**run.whole.overrides, "rows": run.out.name})
    return carry_out(RowTranslation(config, run))
