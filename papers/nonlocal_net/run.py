"""Training run of a video clip classifier: generation of the clips, training, and final scores."""

from __future__ import annotations

from typing import Any

import torch

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.readers.splits import SplitData
from manyheads.models.nonlocal_net import NonLocalNet
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.run import Job, Run, carry_out
from manyheads.training.record import Metrics
from papers.nonlocal_net.moving_digits import LABELS, Clips, ClipSource
from papers.nonlocal_net.recipes import ClipConfig
from papers.nonlocal_net.task import ClipClassifier, ClipTask


def train(config: ClipConfig, run: Run) -> dict[str, Any] | None:
    source = ClipSource(
        size=config.size, tested=config.tested, frames=config.frames, side=config.side, slit=config.slit,
        seed=config.training.seed,
    )  # fmt: skip

    def plan() -> Plan:
        return Plan(planned_model(config), config.batch_items * config.frames, "image")

    def build(splits: SplitData[Clips], compute: ComputeConfig) -> Job[Clips]:
        model = _model(config)
        preprocessing = Preprocessing.of_channels(config.side, 1, mean=(0.5,), std=(0.5,))
        task = ClipTask(
            model, preprocessing, splits.train, splits.validation, compute, config.batch_items, config.training.seed
        )

        def score(clips: Clips) -> Metrics:
            return ClipClassifier(directory.load(run.out), compute).evaluate_clips(clips).metrics

        return Job(model, config.training, score, task)

    return carry_out(run, config, source, plan, build, may_change=("tested",))


def planned_model(config: ClipConfig) -> NonLocalNet:
    """Return a video clip classifier on the meta device, without memory for its weights."""
    with torch.device("meta"):
        return _model(config)


def _model(config: ClipConfig) -> NonLocalNet:
    own = {"labels": LABELS, "image_size": config.side, "channels": 1}
    model: NonLocalNet = build(preset_for_data("nonlocal/20-small", ("nonlocal",), config.model, own))
    return model
