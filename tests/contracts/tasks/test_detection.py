"""Detection: the loss of transformers, average precision, boxes in pixels of the original image, and training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pycocotools.coco as pycocotools_coco
import pytest
import torch
import transformers as untyped_transformers
from PIL import Image
from pycocotools.cocoeval import COCOeval
from torch import Tensor

import manyheads
from manyheads import directory
from manyheads.cli import main
from manyheads.data.images.digit_scenes import MOST_DIGITS, SIDE, digit_scenes
from manyheads.data.images.object_preprocessing import ObjectPreprocessing, padded
from manyheads.data.images.objects import ObjectData, Scene
from manyheads.errors import UserError
from manyheads.models.detr import Detections
from manyheads.tasks.detection.batches import relative
from manyheads.tasks.detection.detected import Detected, detected
from manyheads.tasks.detection.metrics import average_precision, precision_by_label
from manyheads.tasks.detection.predictor import f1_of
from manyheads.tasks.detection.set_loss import Objects, cell_loss, generalized_iou, set_loss
from tests.support import services

transformers: Any = untyped_transformers  # whose configurations take more arguments than their types say

LABELS = ("cat", "dog")


def scene(number: int, boxes: list[list[float]], labels: tuple[str, ...]) -> Scene:
    pixels = np.full((60, 80), number, dtype=np.uint8)
    return Scene(pixels, np.array(boxes, dtype=np.float32).reshape(-1, 4), labels, str(number), (80, 60))


def found(boxes: list[list[float]], labels: list[int], scores: list[float]) -> Detected:
    edges: Any = np.array(boxes, dtype=np.float32).reshape(-1, 4) / np.array([80, 60, 80, 60], dtype=np.float32)
    order: Any = np.argsort(scores)[::-1]
    return Detected(np.array(scores, np.float32)[order], np.array(labels)[order], edges[order], order)


def test_the_loss_is_that_of_transformers(tmp_path: Path) -> None:
    resnet = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], out_features=["stage2"])
    sizes: dict[str, Any] = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                             "decoder_attention_heads": 2, "num_queries": 5, "num_labels": 3}  # fmt: skip
    torch.manual_seed(0)
    other = transformers.DetrForObjectDetection(transformers.DetrConfig(backbone_config=resnet, **sizes)).eval()
    other.save_pretrained(tmp_path)
    images, boxes = torch.randn(3, 3, 64, 64), torch.rand(3, 2, 4) * 0.4 + 0.2
    valid = torch.tensor([[True, True], [True, False], [False, False]])
    labels = torch.tensor([[0, 2], [1, 0], [0, 0]])
    targets: list[dict[str, Tensor]] = [
        {"class_labels": labels[i][valid[i]], "boxes": boxes[i][valid[i]]} for i in range(3)
    ]
    theirs = other(images, labels=targets)
    model = directory.load(tmp_path).model
    predicted = model.predict(model.decode(images).states)
    ours = set_loss(Detections(predicted.logits[:, None], predicted.boxes[:, None]), Objects(boxes, labels, valid))
    assert torch.allclose(ours.labels, theirs.loss_dict["loss_ce"], atol=1e-5)
    assert torch.allclose(ours.l1 / 3, theirs.loss_dict["loss_bbox"], atol=1e-5)
    assert torch.allclose(ours.giou / 3, theirs.loss_dict["loss_giou"], atol=1e-5)
    assert torch.allclose(ours.labels + 5 * ours.l1 / 3 + 2 * ours.giou / 3, theirs.loss, atol=1e-4)


def test_cells_have_the_label_of_the_nearest_object_around_them() -> None:
    # 2 rows and 4 columns of cells; the last column is padding. Object 0 covers the left third of the image
    valid = torch.tensor([[[True, True, True, False]] * 2])
    boxes = torch.tensor([[[1 / 6, 0.5, 1 / 3, 1.0], [0.95, 0.95, 0.02, 0.02], [0.5, 0.5, 1.0, 1.0]]])
    objects = Objects(boxes, torch.tensor([[1, 0, 2]]), torch.tensor([[True, True, False]]))
    right = torch.tensor([[1, 1, 3, 3, 1, 1, 0, 3]])  # the second column is less than half a cell away
    logits = 100.0 * torch.nn.functional.one_hot(right, 4)
    assert cell_loss(logits.float(), valid, objects) == pytest.approx(0, abs=1e-4)
    for cell in range(8):
        wrong = logits.roll(1, -1)
        mixed = torch.cat([logits[:, :cell], wrong[:, cell : cell + 1], logits[:, cell + 1 :]], 1)
        assert cell_loss(mixed.float(), valid, objects) > 1


def test_generalized_iou_of_known_boxes() -> None:
    a = torch.tensor([0.0, 0, 2, 2])
    b = torch.tensor([[0.0, 0, 2, 2], [1, 0, 3, 2], [3, 0, 5, 2]])
    assert generalized_iou(a, b).tolist() == pytest.approx([1, 1 / 3, -0.2])


def test_average_precision_of_known_predictions() -> None:
    data = ObjectData(
        [scene(0, [[0, 0, 40, 40]], ("cat",)), scene(1, [[10, 10, 50, 50], [0, 0, 10, 10]], ("dog", "cat")),
         scene(2, [], ())], LABELS,
    )  # fmt: skip
    perfect = [
        found([[0, 0, 40, 40]], [0], [0.9]), found([[10, 10, 50, 50], [0, 0, 10, 10]], [1, 0], [0.8, 0.7]),
        found([], [], []),
    ]  # fmt: skip
    scores = average_precision(data, LABELS, perfect)
    assert (scores["ap"], scores["ap50"]) == (pytest.approx(1), pytest.approx(1))
    assert "ap_large" not in scores
    # IoU of 0.6 for the dog: right at thresholds .5, .55 and .6 only. The second cat is not found: half of the recall.
    partly = [perfect[0], found([[10, 10, 50, 34.01]], [1], [0.8]), found([], [], [])]
    rows = precision_by_label(data, LABELS, partly)
    assert [row["items"] for row in rows] == [2, 1]
    assert rows[0]["ap50"] == pytest.approx(51 / 101)
    assert rows[1] == {"label": "dog", "items": 1, "ap": pytest.approx(0.3), "ap50": pytest.approx(1)}


def test_predictions_are_sorted_and_inside_the_image() -> None:
    logits = torch.tensor([[[0.0, 5, 0], [4, 0, 0], [0, 0, 9]]])
    boxes = torch.tensor([[[0.5, 0.5, 0.2, 0.4], [0.0, 0.5, 0.5, 0.5], [0.5, 0.5, 0.1, 0.1]]])
    (image,) = detected(Detections(logits, boxes))
    assert image.queries.tolist() == [0, 1, 2]
    assert image.labels[:2].tolist() == [1, 0]
    assert image.boxes[:2].ravel().tolist() == pytest.approx([0.4, 0.3, 0.6, 0.7, 0, 0.25, 0.25, 0.75])


def test_images_keep_their_aspect_ratio_as_in_transformers() -> None:
    ours = ObjectPreprocessing(80, 133, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    theirs = transformers.DetrImageProcessor(**{k: v for k, v in ours.as_dict().items() if k != "image_processor_type"})
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 255, (h, w, 3), dtype=np.uint8)) for h, w in ((50, 70), (200, 60))]
    expected = theirs(images=pictures, return_tensors="pt")
    found = padded([ours.array(picture) for picture in pictures])
    assert found.images.shape == expected["pixel_values"].shape
    assert found.sizes.tolist() == [[int(m.any(1).sum()), int(m.any(0).sum())] for m in expected["pixel_mask"]]
    # Both resize with Pillow's or torch's bilinear filter, which round differently.
    assert np.abs(found.images - expected["pixel_values"].numpy()).mean() < 0.01
    assert ObjectPreprocessing.from_dict(ours.as_dict()) == ours


def test_scenes_have_tight_boxes_and_unseen_digits() -> None:
    splits = digit_scenes(3, seed=1)
    assert splits.test is not None
    assert [len(split) for split in splits.known.values()] == [3, 200, 200]
    for each in splits.test.scenes[:20]:
        assert 1 <= len(each.labels) <= MOST_DIGITS
        pixels = np.asarray(each.image(), dtype=int)
        for left, top, right, bottom in each.boxes.astype(int):
            assert 0 <= left < right <= SIDE
            assert 12 <= bottom - top <= 40
            assert pixels[top:bottom, left:right].max() > 100
    assert digit_scenes(3, seed=2).test.keys == splits.test.keys  # type: ignore[union-attr]
    assert digit_scenes(3, seed=2).train.keys != splits.train.keys


def test_boxes_are_in_pixels_of_the_upright_original(tmp_path: Path) -> None:
    torch.manual_seed(0)
    detector = manyheads.load(services.detector(tmp_path / "model"))
    gray = Image.fromarray(np.random.default_rng(0).integers(0, 255, (100, 300), dtype=np.uint8))
    objects = detector.detect(gray, threshold=0.0)
    assert len(objects) == detector.model.config.queries
    assert all(0 <= o.left <= o.right <= 300 and 0 <= o.top <= o.bottom <= 100 for o in objects)
    assert [o.score for o in objects] == sorted((o.score for o in objects), reverse=True)
    larger = detector.detect(gray.resize((600, 200)), threshold=0.0)
    assert larger[0].right == pytest.approx(2 * objects[0].right, abs=6)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    gray.save(tmp_path / "turned.png", exif=exif)
    upright = detector.detect(tmp_path / "turned.png", threshold=0.0)
    assert max(o.bottom for o in upright) > 100
    assert max(o.right for o in upright) <= 100
    alone, both = detector.detect([gray], threshold=0.0)[0], detector.detect([gray.resize((90, 90)), gray], threshold=0)
    assert [o.label for o in both[1]] == [o.label for o in alone]
    assert both[1][0].left == pytest.approx(alone[0].left, abs=0.1)  # padding of a batch changes nothing


def test_the_score_of_an_image_is_its_f1() -> None:
    from manyheads.tasks.detection.predictor import FoundObject

    cat = FoundObject("cat", 0.9, 0, 0, 10, 10, 0)
    assert f1_of([cat], [cat]) == 1
    assert f1_of([cat, cat], [cat]) == pytest.approx(2 / 3)
    assert f1_of([], []) == 1
    assert f1_of([cat._replace(label="dog")], [cat]) == f1_of([cat._replace(left=6)], [cat]) == 0


def test_a_detector_is_trained_used_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["scenes=12", "batch_items=6", "model.widths=[16,16,16]", "model.stem_width=16", "model.width=16",
                "model.groups=2", "training.epochs=1", "training.warmup=0"]  # fmt: skip
    assert main(["train", "detection", *settings, "--out", "run"]) == 0
    assert "transformers opens" not in capsys.readouterr().out
    result = json.loads(Path("run/result.json").read_text())
    assert {"ap", "ap50"} <= set(result["metrics"])
    image = digit_scenes(1).train.scenes[0].image()
    image.save("scene.png")
    assert main(["detect", "run", "scene.png", "--threshold", "0", "--out", "boxes.png"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 25
    assert {len(row) for row in rows} == {7}
    assert max(Image.open("boxes.png").size) >= 480
    assert main(["detect", "run", "scene.png", "--threshold", "0", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["objects"][0].keys() == {"label", "score", "left", "top", "right", "bottom", "query"}
    assert main(["evaluate", "run", "--by-label"]) == 0
    assert "ap50" in capsys.readouterr().out
    maps = manyheads.load("run").attend("scene.png", threshold=0.0, layers=[0])
    assert maps["cross"][0].weights.shape == (1, 4, 25, 64)
    assert maps["encoder"][0].weights.shape == (1, 4, 64, 64)
    assert main(["train", "detection", "scenes=12", "--init", "run", "training.epochs=1", "--out", "again"]) == 0


def test_coco_results_have_the_ids_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The evaluator of COCO computes the same precision from them as `evaluate`."""
    detector = services.detector(tmp_path / "m", labels=("dot", "line"))
    rng, names = np.random.default_rng(0), ("b/one.png", "two.png")
    (tmp_path / "data" / "b").mkdir(parents=True)
    for name in names:
        Image.fromarray(rng.integers(0, 256, (70, 90), dtype=np.uint8)).save(tmp_path / "data" / name)
    boxes = [{"id": i, "image_id": 40 + i, "category_id": 9, "bbox": [0, 0, 80, 60], "area": 4800, "iscrowd": 0}
             for i in range(2)]  # fmt: skip
    images = [{"id": 40 + i, "file_name": name} for i, name in enumerate(names)]
    content = {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": 9, "name": "dot"}, {"id": 4, "name": "line"}],
    }
    file = tmp_path / "data" / "test.json"
    file.write_text(json.dumps(content))
    arguments = ["detect", str(detector), "--threshold", "0", "--coco", str(file)]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["image_id"] for row in rows} == {40, 41}
    assert {row["category_id"] for row in rows} <= {9, 4}
    truth = pycocotools_coco.COCO(str(file))
    scored = COCOeval(truth, truth.loadRes(rows), "bbox")
    scored.evaluate(), scored.accumulate(), scored.summarize()
    expected = manyheads.load(detector).evaluate(str(file)).metrics["ap"]["value"]
    assert scored.stats[0] == pytest.approx(expected)
    capsys.readouterr()
    assert main([*arguments, str(tmp_path / "data" / "two.png")]) == 0
    assert {row["image_id"] for row in json.loads(capsys.readouterr().out)} == {41}
    Image.new("L", (9, 9)).save(tmp_path / "other.png")
    assert main([*arguments, str(tmp_path / "other.png")]) == 2
    assert "test.json: found no image" in capsys.readouterr().err
    file.write_text(json.dumps(content | {"categories": [{"id": 9, "name": "dot"}]}))
    assert main(arguments) == 2
    assert "found no category 'line', which is a label of" in capsys.readouterr().err


def test_more_objects_than_queries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="6 objects, but the model has 5 object queries: raise model.queries"):
        manyheads.train("detection", scenes=40, out=tmp_path / "run", model={"queries": 5})


def test_relative_boxes_are_inverted_by_corners() -> None:
    boxes = np.array([[10, 20, 30, 50]], dtype=np.float32)
    assert relative(boxes, (100, 200)).tolist() == [pytest.approx([0.2, 0.175, 0.2, 0.15])]


def test_the_thinnest_image_keeps_a_row(tmp_path: Path) -> None:
    detector = manyheads.load(services.detector(tmp_path / "m"))
    assert detector.preprocessing.size_of(3000, 2) == (128, 1)
    assert detector.detect(Image.new("L", (3000, 2)), threshold=1.0) == []
