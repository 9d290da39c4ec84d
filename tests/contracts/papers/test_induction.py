"""`python -m papers.induction`: measures of kept models, and the in-context score against a loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from papers.command import run
from papers.induction.__main__ import main, token_losses
from tests.support import services
from tests.support.induction import induction_gpt


def test_kept_models_are_measured_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (200, 1000, 0):
        services.language_model(tmp_path / f"run/kept/step-{step}", max_positions=32)
    (tmp_path / "text.txt").write_text("the cat sat on the mat, the dog sat on the cat " * 20)
    words = [str(tmp_path / "run"), "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "induction.png")]
    assert run(main, [*words, "--json", str(tmp_path / "curve.json")]) == 0
    points = json.loads((tmp_path / "curve.json").read_text())
    assert [point["step"] for point in points] == [0, 200, 1000]
    assert len(points[0]["scores"]["induction"]) == 2
    assert (tmp_path / "induction.png").stat().st_size > 5000
    assert run(main, [str(tmp_path), *words[1:]]) == 2
    assert "found no kept/step-N" in capsys.readouterr().err


def test_losses_are_means_over_windows() -> None:
    model, windows = induction_gpt(), torch.randint(8, (3, 9), generator=torch.Generator().manual_seed(0))
    found = token_losses(model, windows)
    for at in range(8):
        losses = [-model(window[None, : at + 1])[0, -1].log_softmax(0)[window[at + 1]] for window in windows]
        assert float(found[at]) == pytest.approx(float(torch.stack(losses).mean()), rel=1e-4)
