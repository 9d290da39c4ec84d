"""A translator with batch normalization: training, exact resumption, a skipped step, and refused settings."""

from pathlib import Path

import pytest
import torch

import manyheads
from manyheads.errors import UserError
from manyheads.tasks.train import train
from manyheads.tasks.translation.objective import Batch, TranslationObjective
from manyheads.training.objective import Loss
from tests.contracts.tasks.translation.test_run import SMALL, lines

SETTINGS = SMALL | {
    "beam": 1, "training.schedule": "constant", "training.warmup": 2, "training.learning_rate": 1e-2,
    "model.normalization": "batch", "model.norm": "pre", "model.final_norm": True,
}  # fmt: skip


def test_a_translator_with_batch_normalization_learns_and_resumes_exactly(corpus: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"data": str(corpus), "training.steps": 20, "training.ema": 0.9}
    result = train("translation", settings, out=tmp_path / "whole")
    train("translation", settings | {"training.steps": 10}, out=tmp_path / "parts")
    train("translation", {"training.steps": 20}, out=tmp_path / "parts", resume=True)
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    assert result["metrics"]["perplexity"]["value"] < 40  # of 60 tokens
    translator = manyheads.load(tmp_path / "whole")
    assert translator.family == "manyheads-transformer"
    translator.model.double()
    sources = lines(corpus / "test.en")[:4]
    assert translator.translate(sources) == [translator.translate(source) for source in sources]


def test_a_skipped_step_keeps_the_statistics(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS | {"data": str(corpus), "training.steps": 1, "training.skip_nonfinite": 1}

    def faulty(objective: TranslationObjective, batch: Batch) -> Loss:
        found = loss(objective, batch)
        return found._replace(total=found.total * torch.nan)

    loss = TranslationObjective.loss
    monkeypatch.setattr(TranslationObjective, "loss", faulty)
    train("translation", settings, out=tmp_path)
    norm = manyheads.load(tmp_path).model.encoder.norm.norm
    assert norm.num_batches_tracked == 0
    assert torch.equal(norm.running_mean, torch.zeros(32))


def test_blocks_with_batch_normalization_are_not_recomputed(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="blocks with batch normalization cannot be recomputed"):
        train("translation", SETTINGS | {"data": str(corpus), "training.checkpointing": True}, out=tmp_path)
