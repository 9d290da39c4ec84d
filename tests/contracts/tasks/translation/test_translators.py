"""Recurrent and convolutional translators: training, exact resumption, decoding and attention maps."""

from pathlib import Path
from typing import Any

import pytest

import manyheads
from manyheads.tasks.train import train
from tests.contracts.tasks.translation.test_run import SMALL, lines

LAYERS: dict[str, Any] = {"model.encoder_layers": 1, "model.decoder_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "seq2seq-rnn/rival": {"model.cell": "gru"},
    "rnn-attention/luong": {"model.input_feeding": True},
    "rnn-attention/bahdanau": {},
    "gnmt/tiny": {"model.layers": 2},
    "gnmt/experts": {"model.experts": 4, "model.top_k": 2, "model.expert_size": 16},
    "deep-att/rival": {"model.layers": 2, "model.decoder_layers": 2},
    "convs2s/rival": LAYERS,
    "bytenet/rival": {"model.sets": 1},
}
WITHOUT_MAPS = ("seq2seq-rnn/rival", "bytenet/rival")


@pytest.mark.parametrize("preset", MODELS)
def test_a_translator_trains_resumes_exactly_and_translates(preset: str, corpus: Path, tmp_path: Path) -> None:
    kept = {key: value for key, value in SMALL.items() if not key.startswith("model")}
    settings = kept | MODELS[preset] | {
        "data": str(corpus), "preset": preset, "model.width": 16, "model.hidden": 12, "model.dropout": 0.1, "beam": 1,
        "training.steps": 4, "training.schedule": "inverse_sqrt", "training.warmup": 2, "training.learning_rate": 1e-2,
    }  # fmt: skip
    train("translation", settings, out=tmp_path / "whole")
    train("translation", settings | {"training.steps": 2}, out=tmp_path / "parts")
    train("translation", {"training.steps": 4}, out=tmp_path / "parts", resume=True)
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    translator = manyheads.load(tmp_path / "whole")
    translator.model.double()
    sources = lines(corpus / "test.en")[:3]
    together = translator.nbest(sources, 2, beam=3)
    for source, ranked in zip(sources, together, strict=True):
        (alone,) = translator.nbest([source], 2, beam=3)
        assert [t.text for t in ranked] == [t.text for t in alone]
        assert [t.log_probability for t in ranked] == pytest.approx([t.log_probability for t in alone], abs=1e-9)
    if preset in WITHOUT_MAPS:
        with pytest.raises(ValueError, match="has no attention layers"):
            translator.attend(sources[0])
    else:
        maps = translator.attend(sources[0])
        assert list(maps) == ["cross"]
        assert maps["cross"][0].weights.shape[2:] == (
            len(maps["cross"][0].queries.tokens),
            len(maps["cross"][0].keys.tokens),
        )
