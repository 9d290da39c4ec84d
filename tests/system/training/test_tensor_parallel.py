"""Meshes of two and four processes, compared with one process and with themselves."""

from pathlib import Path

import pytest
import torch

from tests.support.split_models import NAMES, assert_equal_runs, launch, tensors, train_all

pytestmark = pytest.mark.timeout(3600)  # the machine may be busy

STEPS = 6
MESHES = [(2, "tensor=2"), (4, "tensor=4"), (4, "tensor=2"), (4, "shard,tensor=2")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    train_all(out, "-", STEPS, 0.0)
    return out


@pytest.mark.parametrize(("world", "parallel"), MESHES)
def test_a_mesh_equals_one_process(world: int, parallel: str, alone: Path, tmp_path: Path) -> None:
    launch(world, tmp_path, parallel, STEPS, 0.0)
    assert_equal_runs(tmp_path, alone, STEPS)


def test_a_run_continues_on_any_mesh(alone: Path, tmp_path: Path) -> None:
    for steps, world, parallel in ((2, 2, "-"), (3, 2, "tensor=2"), (4, 4, "shard,tensor=2"), (STEPS, 2, "shard")):
        launch(world, tmp_path, parallel, steps, 0.0)
    assert_equal_runs(tmp_path, alone, STEPS)


@pytest.mark.parametrize(
    ("world", "parallel"), [(2, "tensor=2"), pytest.param(4, "shard,tensor=2", marks=pytest.mark.slow)]
)
def test_with_dropout_a_mesh_resumes_to_identical_tensors(world: int, parallel: str, tmp_path: Path) -> None:
    launch(world, tmp_path / "whole", parallel, STEPS, 0.3)
    for steps in (3, STEPS):
        launch(world, tmp_path / "resumed", parallel, steps, 0.3)
    for name in NAMES:
        resumed, whole = (tensors(tmp_path / run, name, STEPS) for run in ("resumed", "whole"))
        assert resumed.keys() == whole.keys()
        assert all(torch.equal(resumed[key], whole[key]) for key in whole)


def test_gradient_checkpointing_repeats_the_dropout_of_split_layers(tmp_path: Path) -> None:
    for name, checkpointing in (("plain", False), ("checkpointing", True)):
        launch(2, tmp_path / name, "tensor=2", 2, 0.3, checkpointing=checkpointing)
    assert_equal_runs(tmp_path / "checkpointing", tmp_path / "plain", 2)
