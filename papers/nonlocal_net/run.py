"""Training run of a video clip classifier: generation of the clips, training, and final scores."""

from __future__ import annotations

import torch

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.readers.splits import SplitData
from manyheads.models.nonlocal_net import NonLocalNet
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.task import Job, Task
from manyheads.training.record import Metrics
from papers.nonlocal_net.moving_digits import LABELS, Clips, ClipSource
from papers.nonlocal_net.recipes import ClipConfig
from papers.nonlocal_net.task import ClipClassifier, ClipTask


class MovingDigits(Task[ClipConfig, Clips]):
    """Task of a classifier of video clips of moving digits."""

    may_change = ("tested",)

    def planned_model(self) -> NonLocalNet:
        with torch.device("meta"):
            return _model(self.config)

    def plan(self) -> Plan:
        return Plan(self.planned_model(), self.config.batch_items * self.config.frames, "image")

    def data(self) -> ClipSource:
        c = self.config
        seed = c.training.seed
        return ClipSource(
            predict=c.predict, size=c.size, tested=c.tested, frames=c.frames, side=c.side, slit=c.slit, seed=seed
        )  # fmt: skip

    def build(self, splits: SplitData[Clips], compute: ComputeConfig) -> Job:
        config, model = self.config, _model(self.config)
        preprocessing = Preprocessing.of_channels(config.side, 1, mean=(0.5,), std=(0.5,))
        objective = ClipTask(
            model, preprocessing, splits.train, splits.validation, compute, config.batch_items, config.training.seed
        )
        return Job(model, config.training, objective)

    def score(self, held: Clips, compute: ComputeConfig) -> Metrics:
        return ClipClassifier(directory.load(self.run.out), compute).evaluate_clips(held).metrics


def _model(config: ClipConfig) -> NonLocalNet:
    own = {"labels": LABELS[config.predict], "image_size": config.side, "channels": 1}
    model: NonLocalNet = build(preset_for_data("nonlocal/20-small", ("nonlocal",), config.model, own))
    return model
