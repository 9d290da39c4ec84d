"""The --precision option of each command: accepted values, errors, and its effect."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import manyheads
from manyheads import directory
from manyheads.cli import main
from manyheads.data.text.tokenizers import train_bpe
from manyheads.models.presets import build, preset

AS_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
TEXTS = ["two men are walking a dog", "a dog, two cats: 42 paws", "zwei Männer führen einen Hund"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_bpe(TEXTS * 3, 60)
    size = tokenizer.get_vocab_size()
    ids = {"pad": size - 1, "start": size - 1, "end": tokenizer.encode("a").ids[-1]}
    folder = tmp_path_factory.mktemp("translator")
    network = build(preset("transformer/tiny", source_vocab=size, target_vocab=size, **ids))
    with torch.no_grad():
        network.source_embedding.weight[size - 1] = 0.0
    directory.save(folder, network, tokenizer)
    return folder


def test_training_refuses_inference_precisions(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"precision is 'int8'; expected float32 or bf16 for training\. int8 and auto are"
    ):
        manyheads.train("translation", precision="int8", out=tmp_path / "run", dry_run=True)


def test_an_unknown_precision_lists_valid_ones(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", str(model), TEXTS[0], "--precision", "int4"]) == 2
    assert "unknown --precision 'int4': did you mean int8?" in capsys.readouterr().err


def test_auto_reports_its_choice(model: Path, log: pytest.LogCaptureFixture) -> None:
    assert main(["translate", str(model), TEXTS[0], "--precision", "auto"]) == 0
    assert "precision auto: " in log.text or importlib.util.find_spec("numba") is None


def test_weights_changed_after_loading_are_used(model: Path) -> None:
    with torch.inference_mode():
        loaded = manyheads.load(model)
    assert loaded.translate(TEXTS[0]) == manyheads.load(model).translate(TEXTS[0])
    changed = manyheads.load(model)
    before = changed.score([TEXTS[0]], ["a dog"])[0].log_probability
    with torch.no_grad():
        for parameter in changed.model.decoder.parameters():
            parameter.mul_(1.5)
    assert changed.score([TEXTS[0]], ["a dog"])[0].log_probability != before


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="nothing is compiled without Numba")
@pytest.mark.parametrize("place", ["none", pytest.param("read-only", marks=AS_ROOT), "shared"])
def test_processes_compile_concurrently_and_without_a_cache(place: str, model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    if place == "none":
        cache = Path("/dev/null/nowhere")
    if place == "read-only":
        cache.mkdir(mode=0o500)
    command = [sys.executable, "-m", "manyheads", "translate", str(model), TEXTS[0]]
    wanted = manyheads.load(model).translate(TEXTS[0])
    started = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={"NUMBA_CACHE_DIR": str(cache), "HOME": str(tmp_path)}
        )
        for _ in range(2)
    ]
    assert [process.communicate(timeout=250)[0].strip() for process in started] == [wanted] * 2
