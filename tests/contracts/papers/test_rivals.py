"""The recipe `translation/rivals`: each row is trained in stages, which do not change its weights."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from manyheads.tasks import train as training
from manyheads.tasks.translation.task import Translation
from papers.rivals import run as rivals
from papers.rivals.recipes import RECIPES, RIVAL_ROWS
from tests.contracts.tasks.translation.conftest import write_corpus
from tests.contracts.tasks.translation.test_run import SMALL

train = partial(training.train, recipes=RECIPES)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus")


def settings(corpus: Path, **more: Any) -> dict[str, Any]:
    return {
        **SMALL,
        "data": str(corpus),
        "rows": ["transformer"],
        "beam": 1,
        "model.max_positions": 24,
        "training.steps": 8,
        **more,
    }


def weights(out: Path) -> bytes:
    return (out / "transformer" / "model.safetensors").read_bytes()


def test_a_killed_run_in_stages_equals_one_run(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "checkpoints", lambda steps: [steps])
    train("translation/rivals", settings(corpus), out=tmp_path / "whole")
    monkeypatch.setattr(rivals, "checkpoints", lambda steps: [3, steps])

    def killed(task: Translation) -> dict[str, Any] | None:
        trained = original(task)
        if task.config.training.steps == 3:
            raise MemoryError
        return trained

    original = rivals.carry_out
    monkeypatch.setattr(rivals, "carry_out", killed)
    with pytest.raises(MemoryError):
        train("translation/rivals", settings(corpus), out=tmp_path / "parts")
    monkeypatch.setattr(rivals, "carry_out", original)
    table: Any = train("translation/rivals", settings(corpus), out=tmp_path / "parts", resume=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")

    result, whole = (
        json.loads((tmp_path / name / "transformer" / "result.json").read_text()) for name in ("parts", "whole")
    )
    curve = result["curve"]
    assert [entry["step"] for entry in curve] == [3, 8]
    assert curve[-1]["loss"] == whole["curve"][0]["loss"] == result["metrics"]["loss"]["value"]
    assert curve[-1]["flops"] == result["flops"] > curve[-2]["flops"] > 0
    assert curve[-1]["seconds"] >= curve[0]["seconds"]
    assert "rows" not in result["overrides"]
    assert table.splitlines()[0].split()[:3] == ["row", "parameters", "active"]
    assert f"{result['active_non_embedding']:,}" in table
    # the finished row is not trained again
    assert train("translation/rivals", settings(corpus), out=tmp_path / "parts") == table


def test_checkpoints_have_equal_ratios_and_fewer_for_few_steps() -> None:
    assert rivals.checkpoints(2600) == [100, 144, 206, 296, 425, 611, 878, 1260, 1810, 2600]
    assert rivals.checkpoints(5) == [1, 2, 3, 5]


def test_a_setting_of_the_user_precedes_that_of_a_row(
    corpus: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    own = settings(corpus, **{"training.learning_rate": 5e-4})
    plan: Any = train("translation/rivals", own, out=tmp_path / "a", dry_run=True)
    assert list(plan["rows"]) == ["transformer"]
    assert plan["rows"]["transformer"]["preset"] == RIVAL_ROWS["transformer"]["preset"]
    assert not train("translation/rivals", own, out=tmp_path / "a", max_minutes=1e-6)
    assert f"--out {tmp_path / 'a'} --resume" in log.text
    command = json.loads((tmp_path / "a" / "transformer" / "state" / "command.json").read_text())
    assert "training.learning_rate=0.0005" in command
    assert "warmup" not in command
    with pytest.raises(ValueError, match="is a part of a run, which is resumed as a whole: python -m papers.rivals"):
        train(out=tmp_path / "a" / "transformer", resume=True)
    checkpoint = json.loads(next((tmp_path / "a" / "transformer" / "state").glob("checkpoint-*.json")).read_text())
    assert checkpoint["content"]["config"]["learning_rate"] == 5e-4
    assert checkpoint["content"]["config"]["warmup"] == 1  # a tenth of the whole run, not of the first stage


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"preset": "small"}, "preset: each row has its own preset; choose rows"),
        ({"rows": ["rnn"]}, "rows: no model rnn: expected some of lstm, lstm-dot"),
        ({"training.epochs": 2}, r"expected training\.steps as the only limit"),
    ],
)
def test_a_wrong_setting_is_reported(corpus: Path, tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    own = {key: value for key, value in settings(corpus).items() if key != "training.steps"}
    with pytest.raises(ValueError, match=message):
        train("translation/rivals", {**own, **wrong}, out=tmp_path / "a")
