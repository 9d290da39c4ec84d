"""Commands on a real run: a tiny model, trained for a few steps."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
import torch

import manyheads
from manyheads import cli
from manyheads.directory import save
from manyheads.models.presets import build, preset

SMALL = ("vocabulary=300", "training.steps=4", "training.checkpoint_every=2", "batch_tokens=256", "threads=1",
         "model={width: 16, encoder_layers: 1, decoder_layers: 1, encoder_heads: 2, decoder_heads: 2}")  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers in words, English and German."""
    directory = tmp_path_factory.mktemp("data")
    english = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    german = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    phrases = list(product(range(9), repeat=3))
    for name, rows in (("train", phrases[::2]), ("val", phrases[1::16]), ("test", phrases[3::48])):
        for suffix, words in (("en", english), ("de", german)):
            (directory / f"{name}.{suffix}").write_text("".join(" ".join(words[i] for i in row) + "\n" for row in rows))
    return directory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    assert cli.main(["train", "translation", f"data={data}", *SMALL, "--out", str(out)]) == 0
    return out


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main(list(arguments)) == 0
    return capsys.readouterr().out


def test_a_dry_run_shows_settings_size_and_estimate_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for recipe in ("translation", "translation/multi30k", "translation/wmt14-base", "translation/wmt14-big"):
        text = shown(capsys, "train", recipe, "--dry-run", "--out", str(tmp_path / "out"), "training.seed=77")
        assert "seed: 77" in text
        assert "parameters:" in text
        assert "hours:" in text
    assert "parameters: 214245376" in text
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_recorded_and_not_overwritten(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["recipe"] == "translation"
    assert result["overrides"]["training.steps"] == 4
    before = (run / "model.safetensors").read_bytes()
    assert cli.main(["train", "translation", f"data={data}", *SMALL, "--out", str(run)]) == 2
    assert "contains a finished run" in capsys.readouterr().err
    assert (run / "model.safetensors").read_bytes() == before


def test_evaluate_and_compare_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((run / "result.json").read_text())
    found = json.loads(shown(capsys, "evaluate", str(run), "--json"))["metrics"]
    assert {"bleu_13a", "chrf", "exact_match"} <= set(found)
    assert all(result["metrics"][name] == found[name] for name in found)
    same = json.loads(shown(capsys, "compare", str(run), str(run), "--json"))
    assert all(test["difference"] == 0 for test in same["bootstrap"].values())
    text = shown(capsys, "compare", str(run), str(run))
    assert "no significant difference" in text
    assert text.endswith("0 items are better with 2, 0 with 1\n")


def test_translate_and_score_commands(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    texts = ["one two", "", "nine nine one"]
    best = json.loads(shown(capsys, "translate", str(run), *texts, "--json"))
    assert [item["source"] for item in best] == texts
    lines = shown(capsys, "translate", str(run), *texts).split("\n")
    assert lines == [item["translations"][0]["text"] for item in best] + [""]
    assert lines[1] == ""
    three = shown(capsys, "translate", str(run), *texts, "--nbest", "3").splitlines()
    assert [line.split("\t")[0] for line in three] == ["1"] * 3 + ["2"] + ["3"] * 3
    (tmp_path / "written").write_text("eins zwei\nneun\n")
    scored = shown(capsys, "translate", str(run), texts[0], texts[2], "--score-target", str(tmp_path / "written"))
    for line in scored.splitlines():
        score, log_probability = map(float, line.split("\t"))
        assert log_probability < score < 0


def test_an_exported_model_translates_equally(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert shown(capsys, "export", str(run), str(tmp_path / "hf"), "--format", "hf") == ""
    asked = ("translate", "one two", "three")
    ours, theirs = (shown(capsys, asked[0], str(model), *asked[1:]) for model in (run, tmp_path / "hf"))
    assert ours == theirs
    total = json.loads(shown(capsys, "summary", str(run), "--json"))["parameters"]["total"]
    assert total == json.loads((run / "result.json").read_text())["parameters"]
    assert cli.main(["convert", str(run), str(tmp_path / "safe")]) == 2
    assert "weights already safe" in capsys.readouterr().err


def test_loading_a_model_does_not_change_the_process(run: Path) -> None:
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    model = manyheads.load(run, threads=before[0] + 1)
    assert model.translate(["eins"])
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before


def test_an_interrupted_run_resumes_by_its_printed_command(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "manyheads",
        "train",
        "translation",
        f"data={data}",
        *SMALL,
        "training.steps=100000",
    ]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    while not list((out / "state").glob("checkpoint-*.json")) and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert f"manyheads train --resume {out}" in told.strip().splitlines()[-1]
    capsys.readouterr()
    assert cli.main([*command[3:], "--out", str(out)]) == 2
    assert f"manyheads train --resume {out}" in capsys.readouterr().err.strip().splitlines()[-1]
    going_on = [*command[:4], "--resume", str(out), "--max-minutes", "0.001"]
    resumed = subprocess.run(going_on, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after step" in resumed.stderr


def test_a_model_without_predictions_is_not_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, build(preset("vit/2-8", labels=(), width=16, layers=1, heads=2)))
    for verb in (["evaluate", str(tmp_path)], ["compare", str(tmp_path), str(tmp_path)]):
        assert cli.main(verb) == 2
        assert "has no predictions to score: use it with manyheads embed or attend" in capsys.readouterr().err
