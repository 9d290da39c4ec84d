"""BERT with pre-norm layers: saving under our model type, and compiling."""

from pathlib import Path

import pytest
import torch

from manyheads import directory
from manyheads.core.runtime import prepare
from manyheads.export import export
from manyheads.inference import compile_model
from tests.unit.models.test_bert import first, small, texts


@pytest.mark.parametrize("head", ["masked_lm", "sequence"])
def test_pre_norm_models_are_saved_in_our_format(tmp_path: Path, head: str) -> None:
    model = small(head, norm="pre")
    assert directory.save(tmp_path / "pre", model) == "manyheads-bert"
    assert directory.save(tmp_path / "post", small(head)) == "bert"
    loaded = directory.load(tmp_path / "pre").model
    assert loaded.config == model.config
    tokens, lengths, segments = texts()
    with torch.no_grad():
        assert torch.equal(first(loaded(tokens, lengths, segments)), first(model(tokens, lengths, segments)))
    with pytest.raises(ValueError, match="norm is 'pre'; only 'post' can be represented"):
        export(tmp_path / "pre", tmp_path / "hf", "hf")
    fast = compile_model(loaded, prepare(threads=1))
    real = torch.arange(9) < lengths[:, None] if head == "masked_lm" else slice(None)  # words, not their padding
    with torch.inference_mode(), fast.compute.autocast():
        found, expected = (first(either(tokens, lengths, segments))[real] for either in (fast, model))
    assert torch.allclose(found, expected, atol=1e-4)
