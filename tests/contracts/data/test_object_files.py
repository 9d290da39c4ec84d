"""Images with boxes in COCO files and YOLO folders: splits, faults with their annotations, and equal content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from manyheads.data.images.digit_scenes import digit_scenes
from manyheads.data.images.object_files import labels_folder, read_objects
from manyheads.data.images.object_source import ObjectSource
from manyheads.data.images.objects import ObjectData
from manyheads.errors import UserError

SCENES = digit_scenes(12).train


def write_coco(folder: Path, split: str = "train", data: ObjectData = SCENES) -> tuple[Path, dict[str, Any]]:
    """Write a COCO file with its images, and return it with its content."""
    (folder / split).mkdir(parents=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, scene in enumerate(data.scenes, 1):
        name = f"{number:03}.png"
        scene.image().save(folder / split / name)
        images.append({"id": number, "file_name": name, "width": 128, "height": 128})
        for label, (left, top, right, bottom) in zip(scene.labels, scene.boxes.tolist(), strict=True):
            box = [left, top, right - left, bottom - top]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, "category_id": int(label) + 10, "bbox": box}
            )
    categories = [{"id": index + 10, "name": name} for index, name in enumerate(data.names)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations").mkdir(exist_ok=True)
    file = folder / "annotations" / f"instances_{split}2017.json"
    file.write_text(json.dumps(content))
    return file, content


def write_yolo(folder: Path) -> Path:
    """Write the scenes as a folder of images with labels, and return the folder of images."""
    images, labels = folder / "images" / "train", folder / "labels" / "train"
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    for number, scene in enumerate(SCENES.scenes, 1):
        scene.image().save(images / f"{number:03}.png")
        lines = [
            f"{label} {(a + c) / 256} {(b + d) / 256} {(c - a) / 128} {(d - b) / 128}"
            for label, (a, b, c, d) in zip(scene.labels, scene.boxes.tolist(), strict=True)
        ]
        (labels / f"{number:03}.txt").write_text("\n".join(lines))
    (folder / "data.yaml").write_text(yaml.safe_dump({"names": dict(enumerate(SCENES.names))}))
    return images


def assert_equal(read: ObjectData) -> None:
    assert read.names == SCENES.names
    for found, scene in zip(read.scenes, SCENES.scenes, strict=True):
        assert (found.labels, found.key, found.size) == (scene.labels, scene.key, scene.size)
        assert np.allclose(found.boxes, scene.boxes, atol=1e-3)


def test_both_formats_are_read(tmp_path: Path) -> None:
    assert_equal(read_objects(write_coco(tmp_path / "coco")[0]))
    assert_equal(read_objects(write_yolo(tmp_path / "yolo")))
    assert labels_folder(Path("images/a/images/b")) == Path("images/a/labels/b")


def test_directories_have_splits(tmp_path: Path) -> None:
    train, content = write_coco(tmp_path / "coco")
    val, _ = write_coco(tmp_path / "coco", "val", SCENES.subset([0, 1]))
    assert ObjectSource().find(str(tmp_path / "coco")) == (str(train), str(val), [])
    source = ObjectSource(data=str(tmp_path / "coco"))
    splits = source.read()
    assert (len(splits.train), len(splits.validation)) == (12, 2)
    assert "objects" in source.report(splits)
    for split in ("train", "valid", "test"):  # as Roboflow exports
        folder = tmp_path / "export" / split
        folder.mkdir(parents=True)
        (folder / "_annotations.coco.json").write_text(json.dumps(content))
        for image in (tmp_path / "coco" / "train").iterdir():
            (folder / image.name).write_bytes(image.read_bytes())
    found = ObjectSource().find(str(tmp_path / "export"))
    assert [Path(str(part)).parent.name for part in (found.train, found.validation, *found.test)] == [
        "train", "valid", "test",
    ]  # fmt: skip
    assert_equal(ObjectSource().read_one(str(found.train)))
    images = write_yolo(tmp_path / "yolo")
    assert ObjectSource().find(str(tmp_path / "yolo")) == (str(images), None, [])


def plant(content: dict[str, Any], folder: Path) -> list[str]:
    """Put ten faults into a COCO file, and return a part of the message about each."""
    rows = content["annotations"]
    rows[0]["bbox"][0] = -30
    rows[1]["bbox"][2] = 0
    rows[2]["bbox"][3] = -4
    rows[3]["category_id"] = 99
    rows[4]["bbox"] = [1, 2, 3]
    rows[5]["bbox"][2] = 500
    rows[6]["image_id"] = 777
    rows[7]["bbox"][0] = float("nan")
    rows.append(dict(rows[9]))
    (folder / "train" / "012.png").unlink()
    return [
        "the box is not inside the image (annotation 1: -30", "; the box has no area (annotation 2: 0 x",
        ", annotation 3: ", "the category is unknown (annotation 4)",
        "bbox is not a list of four numbers (annotation 5)", ", annotation 6: ",
        "the file lists no such image (annotation 7: 777)", "the box is not finite (annotation 8: [nan",
        "the id occurs twice (annotation 10)", "no such file (", "012.png)",
    ]  # fmt: skip


def test_ten_planted_faults_are_all_reported(tmp_path: Path) -> None:
    file, content = write_coco(tmp_path)
    expected = plant(content, tmp_path)
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="10 faulty images or annotations") as raised:
        read_objects(file)
    message = str(raised.value)
    assert [part for part in expected if part not in message] == []
    assert "--skip-bad-lines" in message
    read = read_objects(file, skip_bad_lines=True)
    assert sum(read.skips.values()) == 10
    assert len(read) == 11
    assert read.objects == SCENES.objects - 8 - len(SCENES.scenes[11].labels)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "expected a JSON object"),
        ("{", "invalid JSON"),
        ('{"images": [], "annotations": [3], "categories": []}', "found another annotations"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', "an image lacks id or file_name"),
        ('{"images": [], "annotations": [], "categories": []}', "found no usable image"),
    ],
)
def test_other_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_objects(tmp_path / "train.json")


def test_faults_of_yolo_lines_name_the_line(tmp_path: Path) -> None:
    images = write_yolo(tmp_path)
    (tmp_path / "labels" / "train" / "001.txt").write_text(
        "1 0.5 0.5 0.1 0.1\nx\n11 0.5 0.5 0.1 0.1\n1 0.5 0.5 0 0.1\n"
    )
    with pytest.raises(UserError) as raised:
        read_objects(images)
    parts = ("expected a class index", "001.txt:2", "the category is unknown (", "001.txt:3)", "001.txt:4: 0 x 12.8)")
    for part in parts:
        assert part in str(raised.value)
    (tmp_path / "data.yaml").unlink()
    with pytest.raises(UserError, match="found no names of classes"):
        read_objects(images)


def test_an_image_without_boxes_is_valid_and_unknown_labels_are_not(tmp_path: Path) -> None:
    file, content = write_coco(tmp_path)
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] != 1]
    file.write_text(json.dumps(content))
    assert read_objects(file).scenes[0].boxes.shape == (0, 4)
    with pytest.raises(UserError, match="the model does not know"):
        ObjectSource().read_one(str(file), ("0", "1"))
    content["annotations"] = []
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="found no object in 12 images"):
        ObjectSource(data=str(file)).read()


def test_boxes_are_for_the_upright_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((40, 80), dtype=np.uint8)).save(tmp_path / "a.png", exif=exif)
    row = {"id": 1, "image_id": 5, "category_id": 1, "bbox": [0, 60, 40, 20]}
    content = {
        "images": [{"id": 5, "file_name": "a.png"}],
        "annotations": [row],
        "categories": [{"id": 1, "name": "x"}],
    }
    (tmp_path / "train.json").write_text(json.dumps(content))
    (scene,) = read_objects(tmp_path / "train.json").scenes
    assert (scene.size, scene.number) == ((40, 80), 5)


def test_sizes_and_names_that_contradict_the_images_are_faults(tmp_path: Path) -> None:
    file, content = write_coco(tmp_path)
    content["images"][0] |= {"width": 64, "height": 128}
    content["categories"].append({"id": 90, "name": content["categories"][0]["name"]})
    file.write_text(json.dumps(content))
    with pytest.raises(UserError) as raised:
        read_objects(file)
    assert "width and height differ from those of the upright image (" in str(raised.value)
    assert "64 x 128 and 128 x 128)" in str(raised.value)
    assert "the name occurs twice (category " in str(raised.value)
