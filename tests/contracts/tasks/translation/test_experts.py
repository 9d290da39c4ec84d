"""A translator with experts: training, exact resumption, saving and batched decoding."""

from pathlib import Path

import manyheads
from manyheads.tasks.train import train
from tests.contracts.tasks.translation.test_run import SMALL, lines


def test_a_translator_with_experts_learns_and_resumes_exactly(corpus: Path, tmp_path: Path) -> None:
    settings = SMALL | {
        "data": str(corpus), "beam": 1, "training.steps": 10, "training.schedule": "constant", "training.warmup": 2,
        "training.learning_rate": 1e-2, "training.accumulate": 2, "training.checkpointing": True,
        "model.feed_forward": "experts", "model.experts": 3, "model.top_k": 2, "model.expert_size": 16,
        "model.capacity": 1.25,
    }  # fmt: skip
    result = train("translation", settings, out=tmp_path / "whole")
    train("translation", settings | {"training.steps": 4}, out=tmp_path / "parts")
    train("translation", {"training.steps": 10}, out=tmp_path / "parts", resume=True)
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    assert result["metrics"]["perplexity"]["value"] < 30  # of 60 tokens
    translator = manyheads.load(tmp_path / "whole")
    assert translator.family == "manyheads-transformer"
    translator.model.double()
    sources = lines(corpus / "test.en")[:4]
    together = translator.translate(sources, beam=2)
    assert together == [translator.translate(source, beam=2) for source in sources]
