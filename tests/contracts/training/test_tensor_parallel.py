"""Models whose layers are split over processes, compared with the same models in one process."""

from pathlib import Path

from tests.support.split_models import assert_equal_runs, launch, train_all

STEPS = 5


def test_two_processes_equal_one_and_one_process_continues_their_run(tmp_path: Path) -> None:
    train_all(tmp_path / "one", "-", STEPS, 0.0)
    launch(2, tmp_path / "two", "tensor=2", STEPS - 2, 0.0)
    train_all(tmp_path / "two", "-", STEPS, 0.0)
    assert_equal_runs(tmp_path / "two", tmp_path / "one", STEPS)
