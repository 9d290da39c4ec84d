"""A dry run reads the data and prints what the run itself does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from manyheads.errors import UserError
from manyheads.tasks.train import train
from manyheads.training.config import TrainingConfig
from manyheads.training.optimizers import optimizer_for, state_numbers
from manyheads.training.run_directory import saved_run

SMALL: dict[str, Any] = {
    "preset": "vit/2-8", "batch_items": 8, "workers": 0, "threads": 1, "training.epochs": 2,
    "model": {"image_size": 8, "patch": 4, "width": 8, "layers": 1, "heads": 2, "feed_forward": 8},
}  # fmt: skip


@pytest.fixture
def images(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    for label in ("dark", "light"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(16):
            pixels = random.integers(0, 128, (8, 8, 3), np.uint8) + 127 * (label == "light")
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / label / f"{i}.png")
    return tmp_path / "images"


def test_a_dry_run_prints_the_settings_of_the_run(images: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "data": str(images)}
    plan: Any = train("image-classification", settings, out=tmp_path / "dry", dry_run=True)
    train("image-classification", settings, out=tmp_path / "run", progress=False)
    training = saved_run(tmp_path / "run")["settings"]["training"]
    assert {key: plan["config"]["training"][key] for key in ("warmup", "validate_every", "metric", "epochs")} == {
        key: training[key] for key in ("warmup", "validate_every", "metric", "epochs")
    }
    assert training["metric"] == "top1"
    found = plan["estimate"]
    assert found["images"] == 2 * found["training_items"]
    assert found["steps"] == 2 * found["steps_per_epoch"]
    assert found["steps_between_validations"] == found["steps_per_epoch"]
    assert found["hours"] is not None
    assert plan["memory_gib"].keys() == {"weights", "gradients", "optimizer state", "activations", "sum"}
    assert not (tmp_path / "dry").exists()


def test_a_dry_run_finds_broken_images(images: Path, tmp_path: Path) -> None:
    (images / "dark" / "9.png").write_bytes(b"no image")
    for dry_run in (True, False):
        with pytest.raises(UserError, match=r"dark/9\.png"):
            train("image-classification", {**SMALL, "data": str(images)}, out=tmp_path / "x", dry_run=dry_run)


def test_a_users_budget_replaces_the_recipes(tmp_path: Path) -> None:
    def budget(recipe: str, **given: int) -> tuple[int | None, int | None]:
        settings = {f"training.{name}": value for name, value in given.items()}
        settings |= {"vocabulary": 1000, **({"size": 1000} if recipe == "translation" else {"items": 500})}
        training: Any = train(recipe, settings, out=tmp_path, dry_run=True)["config"]["training"]
        return training["steps"], training["epochs"]

    assert budget("text-classification") == (None, 4)
    assert budget("text-classification", steps=7) == (7, None)
    assert budget("text-classification", steps=7, epochs=2) == (7, 2)
    assert budget("translation", epochs=2) == (None, 2)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "bert_adam", "sgd", "rmsprop"])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_the_state_of_the_optimizer_is_counted(optimizer: Any, momentum: float) -> None:
    config = TrainingConfig(steps=1, schedule="constant", optimizer=optimizer, betas=(momentum, 0.98))
    model = torch.nn.Linear(5, 3)
    optimizer = optimizer_for(model, config)
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert sum(value.numel() for value in kept if value.ndim) == state_numbers(config) * weights
