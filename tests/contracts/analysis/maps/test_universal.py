"""Maps of a Universal Transformer, and atomic replacement of files."""

import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from manyheads.analysis.maps import AttentionMaps, attention_maps
from manyheads.models import universal
from manyheads.models.presets import preset
from manyheads.models.universal import Universal, UniversalSequence
from tests.support.map_examples import example


def adaptive() -> Universal:
    """Positions halt after one step, after two, or at the end, as their tokens say."""
    torch.manual_seed(0)
    model = Universal(preset("universal/tiny", width=16, heads=2, feed_forward=16, steps=4, halting="basic",
                                       source_vocab=9, target_vocab=9, pad=0, end=1, start=0)).eval()  # fmt: skip
    for stack in (model.encoder, model.decoder):
        assert stack.halt is not None
        nn.init.normal_(stack.halt.weight, std=2)
    return model


def test_universal_maps_report_steps_per_position(tmp_path: Path) -> None:
    model, inputs = adaptive(), (torch.tensor([[3, 4, 5, 6, 7, 8]]), None, torch.tensor([[0, 3, 4, 5]]))
    maps = attention_maps(model, *inputs)
    _, thoughts = model.forward_with_halting(*inputs)
    read, written = (tuple(thoughts[stack].steps[0].int().tolist()) for stack in ("encoder", "decoder"))
    assert len({*read, *written}) > 1
    for axis, queries, keys in (("encoder", read, read), ("decoder", written, written), ("cross", written, read)):
        assert [layer.step for layer in maps[axis]] == list(range(1, max(queries) + 1))
        for layer in maps[axis]:
            assert (layer.queries.steps, layer.keys.steps) == (queries, keys)
            assert layer.halted.tolist() == [steps < layer.step for steps in queries]
    maps.save(tmp_path / "maps.npz")
    with np.load(tmp_path / "maps.npz") as arrays:
        assert (tuple(arrays["cross/0/queries/steps"]), tuple(arrays["cross/0/keys/steps"])) == (written, read)
    frame = maps.frame()
    assert set(zip(frame["query"], frame.query_steps, strict=True)) >= set(enumerate(written))
    assert frame[frame.axis == "cross"].groupby("key").key_steps.first().tolist() == list(read)
    maps.draw(tmp_path / "maps.png", axis="decoder")
    fixed = Universal(replace(model.config, halting="fixed"))
    assert attention_maps(fixed, *inputs)["cross"][0].queries.steps is None
    alone = UniversalSequence(
        universal.UniversalSequenceConfig(vocab=9, width=16, heads=2, feed_forward=16, steps=8, halting="basic")
    )
    (side, *_) = (layer.queries for layer in attention_maps(alone, inputs[0])["self"])
    assert side.steps == tuple(alone.eval().forward_with_halting(inputs[0])[1]["decoder"].steps[0].int().tolist())


def test_written_files_are_replaced_atomically(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name, write in (("a.html", AttentionMaps.page), ("a.npz", AttentionMaps.save), ("a.png", AttentionMaps.draw)):
        file = tmp_path / name
        file.write_bytes(b"what was there")
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # as on a full disk
        try:
            with pytest.raises(ValueError, match=f"{name}: cannot write"):
                write(example(), file)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert file.read_bytes() == b"what was there"
        write(example(), file)
        assert file.stat().st_size > 1000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.html", "a.npz", "a.png"]
