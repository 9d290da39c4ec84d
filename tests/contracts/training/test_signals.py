"""Signals end a run with a checkpoint or a complete model, at any moment."""

import multiprocessing
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from manyheads.training.checkpoints import Checkpoints
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import train
from manyheads.training.run_directory import run_status
from manyheads.training.session import Interrupted
from tests.contracts.training.test_resume import SETTINGS, Crash, outcome, run
from tests.support.toy import ToyTask, toy_route


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the result of a run without signals."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run(out)
    return outcome(out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_finishes_the_step_and_writes_the_checkpoint(tmp_path, whole, number):
    task = ToyTask()
    task.before_loss = lambda call: signal.raise_signal(number) if call == 38 else None
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"after step 15; wrote a checkpoint; resume with: again"):
        train(task, TrainingConfig(**SETTINGS), tmp_path / "run", compute=toy_route(), resume_command="again")
    assert signal.getsignal(number) is handler
    assert (tmp_path / "run" / "state" / "checkpoint-00000015.json").exists()
    run(tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == whole


def test_nohup_ignores_a_closed_terminal(tmp_path):
    """The test ignores SIGHUP, as nohup does."""
    task = ToyTask()
    task.before_loss = lambda call: signal.raise_signal(signal.SIGHUP) if call == 2 else None
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train(task, TrainingConfig(**SETTINGS), tmp_path, compute=toy_route()).status == "finished"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_handler_installed_from_c_is_kept(tmp_path, monkeypatch):
    """Python reads such a handler as None, which it does not accept as a handler."""
    set_signal = signal.signal

    def set_python_signal(number: int, handler: Any) -> Any:
        previous = set_signal(number, handler)
        return None if number == signal.SIGHUP else previous

    get_signal = signal.getsignal
    monkeypatch.setattr(signal, "signal", set_python_signal)
    monkeypatch.setattr(signal, "getsignal", lambda n: None if n == signal.SIGHUP else get_signal(n))
    before = get_signal(signal.SIGHUP)
    config = TrainingConfig(**{**SETTINGS, "steps": 3, "warmup": 1})
    assert train(ToyTask(), config, tmp_path, compute=toy_route()).status == "finished"
    assert get_signal(signal.SIGHUP) is before


def test_a_second_signal_aborts_at_once_without_damage(tmp_path, whole):
    task = ToyTask()
    task.before_loss = lambda call: signal.raise_signal(signal.SIGINT) if call in (38, 39) else None
    with pytest.raises(KeyboardInterrupt) as aborted:
        train(task, TrainingConfig(**SETTINGS), tmp_path / "run", compute=toy_route())
    assert not isinstance(aborted.value, Interrupted)
    run(tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == whole


class EndedInValidation(ToyTask):
    """The process gets SIGTERM during each validation."""

    def validate(self) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        return super().validate()


def interrupted(task: ToyTask, out: Path, **options: Any) -> str:
    """Train in a child process, because a signal may kill it. Return its last message."""

    def child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            run(out, task=task, resume_command="again", **options)
        except Interrupted as error:
            out.with_suffix(".txt").write_text(str(error))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    return out.with_suffix(".txt").read_text()


def test_a_signal_during_the_last_validation_completes_the_run(tmp_path):
    config = TrainingConfig(**{**SETTINGS, "validate_every": 10**6})
    told = interrupted(EndedInValidation(), tmp_path / "run", config=config)
    assert re.fullmatch(r"interrupted after training; the model in .* is complete; to evaluate it: again", told)
    assert run_status(tmp_path / "run") == "finished"


def test_a_signal_during_the_first_validation_writes_a_checkpoint(tmp_path, whole):
    told = interrupted(EndedInValidation(), tmp_path / "run")
    assert told == "SIGTERM after step 10; wrote a checkpoint; resume with: again"
    run(tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == whole


def test_a_signal_while_a_checkpoint_is_read_stops_before_the_next_step(tmp_path, whole, monkeypatch):
    with pytest.raises(Crash):
        run(tmp_path / "run", 40)
    latest = Checkpoints.latest

    def ended(checkpoints: Checkpoints) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return latest(checkpoints)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "latest", ended)
        told = interrupted(ToyTask(), tmp_path / "run", resume=True)
    assert told == "SIGTERM after step 8; wrote a checkpoint; resume with: again"
    run(tmp_path / "run", resume=True)
    assert outcome(tmp_path / "run") == whole
