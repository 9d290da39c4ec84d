"""A translation run that is killed and resumed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manyheads import cli
from tests.contracts.tasks.translation.conftest import write_corpus
from tests.contracts.tasks.translation.test_run import SMALL


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus")


def command(corpus: Path, out: Path, *more: str) -> list[str]:
    settings = {**SMALL, "data": corpus, "training.steps": 40, "model.dropout": 0.1, "training.average": 3}
    return [
        *(sys.executable, "-m", "manyheads", "train", "translation"),
        *(f"{key}={value}" for key, value in settings.items()),
        *("--out", str(out), *more),
    ]


def test_a_killed_and_resumed_run_is_identical(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert cli.main(command(corpus, whole)[3:]) == 0
    process = subprocess.Popen(
        command(corpus, killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    while not (killed / "state" / "checkpoint-00000005.json").exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "model.safetensors").exists()
    capsys.readouterr()
    assert cli.main(command(corpus, killed)[3:]) == 2
    assert "--resume" in capsys.readouterr().err.splitlines()[-1]
    subprocess.run(command(corpus, killed, "--resume"), check=True, capture_output=True, env=environment)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
