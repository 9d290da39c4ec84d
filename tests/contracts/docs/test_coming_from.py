"""Python examples of the pages about other libraries, run on small untrained models."""

import re
from pathlib import Path

import pytest
import torch

from tests.paths import ROOT
from tests.support.services import language_model

PAGE = ROOT / "docs" / "coming-from" / "transformerlens.md"


def test_everyday_tasks_of_transformerlens_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    language_model(tmp_path / "runs/gpt", norm="pre")
    begin, *tasks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(tasks) == 5
    assert all(len(task.splitlines()) <= 10 for task in tasks)
    names: dict[str, object] = {}
    for code in (begin, *tasks):
        exec(code, names)
    effect = names["effect"]
    assert isinstance(effect, torch.Tensor)
    assert effect.shape == (2, 2)
    assert (effect > 0).all()
    assert (tmp_path / "patch.html").is_file()
