"""Run directories: their status, and locking against a second process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyheads import directory
from manyheads.files import LEFTOVER, write_json
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import train
from manyheads.training.run_directory import describe_unfinished, locked, locked_run_directory, run_status
from tests.support.toy import ToyTask, toy_route

CONFIG = TrainingConfig(steps=16, schedule="constant", warmup=0, learning_rate=0.01)
CLAIM = """
import sys, time
from pathlib import Path
from manyheads.training.run_directory import locked_run_directory
assert "torch" not in sys.modules
with locked_run_directory(Path(sys.argv[1]), resume=True):
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that locks tmp_path / "run"."""
    command = [sys.executable, "-c", CLAIM, str(tmp_path / "run"), "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_process_is_refused_while_the_first_runs(
    tmp_path: Path, holder: "subprocess.Popen[str]", resume: bool
) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=rf"run is in use by the running process {holder.pid}: wait for it, or choose"):
        train(ToyTask(), CONFIG, out, compute=toy_route(), resume=resume)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert train(ToyTask(), CONFIG, out, compute=toy_route(), resume=resume).status == "finished"


def test_a_process_may_relock_its_run_and_unlocks_it_at_the_end(tmp_path: Path) -> None:
    with locked_run_directory(tmp_path, resume=False):
        with locked(tmp_path):
            pass
        assert (tmp_path / "state" / "lock").read_text() == str(os.getpid())
        claiming = [sys.executable, "-c", CLAIM, str(tmp_path), "0"]
        assert subprocess.run(claiming, check=False, capture_output=True).returncode == 1
    assert subprocess.run(claiming, check=False).returncode == 0


def test_a_stopped_run_names_its_resume_command(tmp_path: Path) -> None:
    assert describe_unfinished(tmp_path) is None
    task = ToyTask()
    task.before_loss = lambda call: signal.raise_signal(signal.SIGINT) if call == 12 else None
    with pytest.raises(KeyboardInterrupt):
        train(task, CONFIG, tmp_path, compute=toy_route(), resume_command="manyheads train toy --resume")
    told = "unfinished at step 12: resume with: manyheads train toy --resume"
    assert describe_unfinished(tmp_path) == told
    with pytest.raises(ValueError, match=f"^{tmp_path}: {told}$"):
        directory.load(tmp_path)
    train(ToyTask(), CONFIG, tmp_path, compute=toy_route(), resume=True)
    assert describe_unfinished(tmp_path) is None


def test_a_run_stopped_before_its_first_checkpoint_can_be_restarted(tmp_path: Path) -> None:
    with locked_run_directory(tmp_path, resume=False):
        pass
    with pytest.raises(ValueError, match="this run has no checkpoint yet"):
        directory.load(tmp_path)


@pytest.mark.parametrize("name", [f"{LEFTOVER}1234abcd-command.json", "command.json.tmp", "command.json"])
def test_a_kill_during_the_first_write_leaves_a_resumable_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / name).write_text('"x')
    assert run_status(tmp_path) == "none"
    assert train(ToyTask(), CONFIG, tmp_path, compute=toy_route()).status == "finished"
    assert not list(tmp_path.rglob(f"{LEFTOVER}*"))


def test_runs_of_other_recipes_below_are_allowed(tmp_path: Path) -> None:
    """runs/translation may contain runs/translation/multi30k and the rows of runs/translation/ablate."""
    (tmp_path / "multi30k" / "state").mkdir(parents=True)
    (tmp_path / "ablate" / "base" / "state").mkdir(parents=True)
    (tmp_path / "ablate" / "result.json").write_text("{}")
    assert run_status(tmp_path) == "none"
    (tmp_path / "thesis").mkdir()
    assert run_status(tmp_path) == "foreign"


def test_a_run_without_training_is_finished_by_its_result(tmp_path: Path) -> None:
    with locked_run_directory(tmp_path, resume=False):
        pass
    assert run_status(tmp_path) == "none"
    write_json(tmp_path / "result.json", {})
    with (
        pytest.raises(ValueError, match="contains a finished run; choose another directory"),
        locked_run_directory(tmp_path, resume=False),
    ):
        pass
