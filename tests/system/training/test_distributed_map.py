"""Predictions and scores of several processes, compared with those of one."""

import sys
from pathlib import Path

import pytest

from tests.support.families import run, write_data
from tests.support.predictions import CALLS
from tests.system.training.test_distributed import TORCHRUN, called, manyheads


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("worlds", [(2,), pytest.param((3, 4), marks=pytest.mark.slow)])
def test_any_number_of_processes_prints_equal_output(tmp_path: Path, worlds: tuple[int, ...]) -> None:
    write_data(tmp_path)
    for name in {arguments[1] for arguments, _ in CALLS.values()}:
        run(name, tmp_path, tmp_path, steps=4)
    for world in (1, *worlds):
        out = tmp_path / str(world)
        out.mkdir()
        several = (*TORCHRUN, "--standalone", f"--nproc-per-node={world}") if world > 1 else (sys.executable,)
        done = called(*several, "-m", "tests.support.predictions", str(tmp_path), str(out))
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("no-such-image") == 1, done.stderr
        assert "rank 1" not in done.stderr
        for name in CALLS:
            text = (out / name).read_text()
            assert text.startswith("2\n" if name == "refused" else "0\n"), text
            assert name == "refused" or len(text) > len("0\n")
            assert text == (tmp_path / "1" / name).read_text(), (name, world)


@pytest.mark.timeout(600)
def test_a_single_process_verb_refuses_torchrun() -> None:
    done = called(*TORCHRUN, "--standalone", "--nproc-per-node=2", "-m", "manyheads", "recipes")
    told = [line for line in done.stderr.splitlines() if line.startswith("manyheads:")]
    assert told == ["manyheads: recipes runs in one process: start it without torchrun"]
    done = manyheads("generate", "nowhere", "--stream", "--processes", "2")
    assert done.returncode == 2
    assert "--stream runs in one process" in done.stderr
