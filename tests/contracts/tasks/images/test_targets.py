"""Images with numbers or several labels: training, predictions and reports; balanced sampling of images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import manyheads
from manyheads import cli
from manyheads.data.images.augmentation import Augmentation
from manyheads.data.images.labeled_images import ImageData, Item
from manyheads.data.images.loader import ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.tasks.train import train

SMALL: dict[str, Any] = {
    "threads": 1, "training.epochs": 10, "training.warmup": 5, "batch_items": 20, "model.width": 16, "model.layers": 1,
    "model.heads": 2, "model.feed_forward": 16, "training.learning_rate": 5e-3,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of a brightness, some with a white first row; tables with the brightness, and with a list of labels."""
    path = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(1)
    for split, count in {"train": 80, "val": 20, "test": 20}.items():
        rows: dict[str, list[dict[str, Any]]] = {"regression": [], "multi-label": []}
        for i in range(count):
            bright, framed, name = random.random(), random.random() < 0.5, f"{split}-{i}.png"
            pixels = np.full((8, 8), 200 * bright, np.uint8)
            pixels[0] = 255 if framed else pixels[0]
            Image.fromarray(pixels).save(path / name)
            rows["regression"].append({"image": f"../{name}", "label": round(bright, 3)})
            labels = ["bright"] * (bright > 0.5) + ["framed"] * framed
            rows["multi-label"].append({"image": f"../{name}", "label": labels})
        for target, lines in rows.items():
            (path / target).mkdir(exist_ok=True)
            (path / target / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.mark.parametrize(("target", "metric", "problem"), [
    ("regression", "pearson", "regression"), ("multi-label", "map", "multi_label_classification"),
])  # fmt: skip
def test_a_run_predicts_the_target(
    target: str, metric: str, problem: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SMALL, "data": str(data / target), "target": target, "training.metric": metric}
    if target == "multi-label":
        settings |= {"threshold": "validation", "class_weights.framed": 2}
    result = train("image-classification", settings, out=tmp_path / "run")
    assert result is not None
    assert target == "regression" or result["threshold"].keys() == {"bright", "framed"}
    assert result["metrics"][metric]["value"] > 0.8
    assert json.loads((tmp_path / "run" / "config.json").read_text())["problem_type"] == problem
    model, image = manyheads.load(str(tmp_path / "run")), str(data / "test-0.png")
    (prediction,) = model.predictions([image])
    assert model.predict([image]) == [prediction] if target == "regression" else model.classify(image) == prediction
    assert target != "regression" or model.predict(image) == prediction
    assert {name: model.outcome().metrics[name] for name in result["metrics"]} == result["metrics"]
    assert cli.main(["classify", str(tmp_path / "run"), image, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)[0]
    assert answer["value"] == prediction if target == "regression" else len(answer["labels"]) == len(prediction)
    rows = [json.loads(line) for line in (data / target / "test.jsonl").read_text().splitlines()]
    renamed = [{"id": row["image"][3:].removesuffix(".png"), "value": row["label"]} for row in rows]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, renamed)))
    columns = f"image=id,label=value,folder={data},suffix=.png"
    command = ["evaluate", str(tmp_path / "run"), "--columns", columns, "--json"]
    assert cli.main([*command, "--data", str(tmp_path / "test.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == model.outcome().metrics
    assert cli.main(command) == 2
    assert "columns apply only to other test data" in capsys.readouterr().err
    assert cli.main([*command[:3], "text=id"]) == 2
    assert "--columns text: expected some of image, label, folder, suffix" in capsys.readouterr().err
    assert cli.main([*command[:2], "--truncate"]) == 2
    assert "--truncate applies to classifiers and encoders of texts" in capsys.readouterr().err
    assert cli.main(["evaluate", str(tmp_path / "run"), "--errors", str(tmp_path / "errors.png")]) == 0
    assert Image.open(tmp_path / "errors.png").width > 100


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "regression", "smoothing": 0.1}, "smoothing: only for target=classes"),
        ({"target": "multi-label", "augmentation.mixup": 0.5}, "augmentation.mixup: only for target=classes"),
        ({"sampling": "balanced", "augmentation.repeats": 3}, "sampling and augmentation.repeats"),
        ({"class_weights": "balanced", "augmentation.cutmix": 1.0}, "class_weights: no effect on mixed images"),
        ({"target": "regression", "training.metric": "top1"}, "training.metric is top1: expected loss or mse or mae"),
        ({"target": "multi-label", "preset": "deit/ti16"}, "model.distilled=true: only for target=classes"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str, data: Path, tmp_path: Path) -> None:
    given = {"data": str(data / "multi-label"), **settings}
    with pytest.raises(ValueError, match=message):
        train("image-classification", given, out=tmp_path / "run")


def test_balanced_sampling_draws_rare_images_often() -> None:
    items = [Item(np.full((8, 8), i, np.uint8), "rare" if i < 5 else "usual", str(i), (8, 8), "L") for i in range(50)]
    data = ImageData(items, ("rare", "usual"))
    preprocessing = Preprocessing(8, mean=(0.5,), std=(0.5,), channels=1)
    loader = ImageLoader(
        data, data.names, preprocessing, batch_items=10, augmentation=Augmentation(), seed=1, balanced=True
    )
    first, again, other = ([batch.labels for batch in loader.epoch(epoch)] for epoch in (0, 0, 1))
    np.testing.assert_equal(first, again)
    assert not np.array_equal(np.concatenate(first), np.concatenate(other))
    assert 15 < np.concatenate(first).sum() < 35
