"""Image recipes on pictures small enough to memorize, from files to a model directory and its commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import cli, directory
from manyheads.models.presets import preset
from manyheads.models.vit import ViT
from manyheads.tasks.comparison import compare
from manyheads.tasks.evaluation import evaluate
from manyheads.tasks.images import ablation
from manyheads.tasks.train import train

TINY = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 32, "patch": 4, "image_size": 8, "channels": 3}
SMALL: dict[str, Any] = {
    "preset": "vit/2-8", "threads": 1, "batch_items": 8, "training.epochs": 12, "training.learning_rate": 5e-3,
    "training.warmup": 5, "training.log_every": 5, "augmentation.crop": "none", "model": TINY,
}  # fmt: skip


def picture(label: str, number: int) -> Image.Image:
    """Return a noisy image with a red upper or lower half."""
    pixels = np.random.default_rng(number).integers(0, 90, (8, 8, 3), dtype=np.uint8)
    pixels[slice(0, 4) if label == "above" else slice(4, 8), :, 0] += 150
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for split, first, count in (("train", 0, 40), ("val", 100, 10), ("test", 200, 10)):
        for label in ("above", "below"):
            (folder / split / label).mkdir(parents=True)
            for i in range(first, first + count):
                picture(label, i + 1000 * (label == "below")).save(folder / split / label / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "vit"
    train("image-classification", {**SMALL, "data": str(data)}, out=out)
    return out


def test_a_run_trains_records_and_evaluates(run: Path, data: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["metrics"]["top1"]["value"] == 1.0
    assert "top5" not in result["metrics"]  # of two labels it would be 1
    assert result["data"]["items"] == {"train": 80, "validation": 20, "test": 20}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [line["accuracy"] for line in lines if "loss" in line]
    assert 0 < trained[0] < trained[-1] <= 1.0
    model = manyheads.load(str(run))
    assert model.labels == ("above", "below")
    for again in (evaluate(model), evaluate(model, str(data)), evaluate(model, str(data / "test"))):
        assert again == {name: result["metrics"][name] for name in ("loss", "top1", "macro_f1", "mcc")}
    assert compare(model, model)["most_changed"] == []


def test_each_row_of_deits_ablation_removes_a_part(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ablation, "ROWS", {row: ablation.ROWS[row] for row in ("base", "no mixup, no cutmix")})
    settings = {**SMALL, "data": str(data), "training.epochs": 1}
    assert not train("deit/ablate", settings, out=tmp_path / "a", max_minutes=1e-6)
    assert f"--out {tmp_path / 'a'} --resume" in log.text
    table: Any = train("deit/ablate", settings, out=tmp_path / "a", resume=True)
    assert [line[:24].rstrip() for line in table.splitlines()[1:]] == ["base", "no mixup, no cutmix"]
    assert (tmp_path / "a" / "table.txt").read_text() == table + "\n"
    results = [tmp_path / "a" / row / "result.json" for row in ("base", "no-mixup-no-cutmix")]
    written = [path.stat().st_mtime_ns for path in results]
    assert train("deit/ablate", settings, out=tmp_path / "a", resume=True) == table
    assert [path.stat().st_mtime_ns for path in results] == written, "finished rows are not scored again"
    train("deit/ablate", {**settings, "scored": "test"}, out=tmp_path / "a", resume=True)
    assert all(path.stat().st_mtime_ns > before for path, before in zip(results, written, strict=True))
    assert train("deit/ablate", settings, out=tmp_path / "a", resume=True) == table
    results[0].unlink()
    assert train("deit/ablate", settings, out=tmp_path / "a", resume=True) == table
    assert results[0].exists()
    one, two = (json.loads((tmp_path / "a" / n / "result.json").read_text()) for n in ("base", "no-mixup-no-cutmix"))
    assert two["overrides"] == {**one["overrides"], "augmentation.mixup": 0.0, "augmentation.cutmix": 0.0}
    assert one["metrics"]["top1"]["signature"] == "2 labels, 20 images"  # of validation: test data stay unseen
    assert train("deit/ablate", {"data": str(data)}, out=tmp_path / "b", dry_run=True)["rows"][0] == "base"


def test_the_commands_classify_images(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = [str(data / "test" / label / "203.png") for label in ("below", "above")]
    assert cli.main(["classify", str(run), *files]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [[files[0], "below"], [files[1], "above"]]
    assert cli.main(["classify", str(run), files[0], "--top", "5", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert sum(label["probability"] for label in found["labels"]) == pytest.approx(1)
    assert manyheads.load(str(run)).classify(Image.open(files[0]))[0].label == "below"
    assert cli.main(["evaluate", str(run), "--by-label", "--json"]) == 0
    labels = json.loads(capsys.readouterr().out)["labels"]
    assert [(row["label"], row["items"], row["recall"]) for row in labels] == [("above", 10, 1.0), ("below", 10, 1.0)]
    (tmp_path / "text.png").write_text("no image")
    for bad, message in ((str(tmp_path / "text.png"), "text.png: "), (str(tmp_path / "none.png"), "no such file")):
        assert cli.main(["classify", str(run), bad]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_an_opened_image_equals_its_file(run: Path, tmp_path: Path) -> None:
    """A photograph that is stored on its side, and one with transparency."""
    upright = picture("below", 203)
    turned = upright.transpose(Image.Transpose.ROTATE_180)
    exif = Image.Exif()
    exif[0x0112] = 3
    turned.save(tmp_path / "turned.png", exif=exif)
    clear = upright.convert("RGBA")
    clear.putalpha(Image.new("L", (8, 8), 120))
    clear.save(tmp_path / "clear.png")
    model = manyheads.load(str(run))
    for name in ("turned.png", "clear.png"):
        from_file, opened = model.classify([str(tmp_path / name), Image.open(tmp_path / name)])
        assert from_file == opened
    assert model.classify(Image.open(tmp_path / "turned.png")) == model.classify(upright)
    with pytest.raises(ValueError, match="the image"):
        model.classify(Image.new("F", (8, 8)))


def test_unstated_normalization_is_reported(run: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    shutil.copytree(run, tmp_path / "bare")
    (tmp_path / "bare" / "preprocessor_config.json").unlink()
    assert manyheads.load(str(run)) is not None
    assert "preprocessor_config.json" not in log.text
    assert manyheads.load(str(tmp_path / "bare")).preprocessing.mean == (0.5,) * 3
    assert "found no preprocessor_config.json; using mean 0.5" in log.text


def test_paths_on_stdin_are_read(
    run: Path, data: Path, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(data / "test" / "above" / "201.png")
    stdin(f"{file}\n")
    assert cli.main(["classify", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}\tabove\t")


def test_one_bad_image_among_many_is_reported(
    run: Path, data: Path, tmp_path: Path, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """An unreadable image is reported by line and file; images before it, and optionally after it, are classified."""
    good = str(data / "test" / "above" / "201.png")
    bad = tmp_path / "bad.png"
    bad.write_text("no image")
    stdin(f"{good}\n{bad}\n{good}\n")
    assert cli.main(["classify", str(run)]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"{good}\tabove\t{out.split()[-1]}"]
    assert f"<stdin>:2: {bad}: not an image" in err
    assert err.count("\n") == 1
    stdin(f"{good}\n{bad}\n{good}\n")
    assert cli.main(["classify", str(run), "--skip-bad-lines"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == [good, str(bad), good]
    assert f"skipped: <stdin>:2: {bad}: not an image" in err
    model = manyheads.load(str(run))
    with pytest.raises(ValueError, match="bad.png: not an image"):
        model.classify([good, bad])
    faults: dict[int, str] = {}
    answers = model.classify([good, bad, good], faults=faults)
    assert [bool(labels) for labels in answers] == [True, False, True]
    assert list(faults) == [1]


def test_a_tab_in_a_label_keeps_the_table_intact(
    run: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(data / "test" / "above" / "201.png")
    monkeypatch.setattr("manyheads.tasks.targets.distinct_names", lambda labels: ("a\tb", "c"))
    assert cli.main(["classify", str(run), file]) == 0
    assert capsys.readouterr().out.split("\t")[:2] == [file, "a b"]
    assert cli.main(["classify", str(run), file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["labels"][0]["label"] == "a\tb"


def test_transformers_gives_equal_attention(run: Path, data: Path) -> None:
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(run)
    processor = AutoImageProcessor.from_pretrained(run)
    image = Image.open(data / "test" / "below" / "205.png")
    with torch.inference_mode():
        theirs = model(**processor(image, return_tensors="pt")).logits.softmax(-1)[0]
    ours = {label.label: label.probability for label in manyheads.load(str(run)).classify(image, top=2)}
    assert model.config.id2label[int(theirs.argmax())] == "below"
    assert ours["below"] == pytest.approx(float(theirs.max()), abs=1e-5)


def test_a_teacher_that_repeats_the_labels_is_reported(run: Path, data: Path, tmp_path: Path, log: Any) -> None:
    settings = {**SMALL, "data": str(data), "teacher": str(run), "training.epochs": 1, "model": TINY}
    for name, change in ("hard", {}), ("soft", {"distillation": "soft"}), ("mixed", {"augmentation.mixup": 0.8}):
        result = train("image-classification", {**settings, **change}, out=tmp_path / name)
        assert name == "mixed" or result["distillation"]["differing_labels"] == 0
    assert log.text.count("hard distillation has no effect") == 1


@pytest.mark.parametrize("token", [True, False])
def test_a_student_learns_from_a_teacher(run: Path, data: Path, tmp_path: Path, token: bool) -> None:
    """With share=1 nothing but the teacher's word counts; its labels are swapped, and the student learns them so."""
    loaded = directory.load(run)
    head = loaded.model.head
    with torch.no_grad():
        head.weight.copy_(head.weight.flip(0)), head.bias.copy_(head.bias.flip(0))
    directory.save(tmp_path / "teacher", loaded.model, preprocessing=loaded.preprocessing)
    settings = {**SMALL, "data": str(data), "teacher": str(tmp_path / "teacher"), "share": 1.0, "training.epochs": 25,
                "training.ema": 0.5}  # fmt: skip  # the last weights, because the best ones agree with the labels
    result = train("image-classification", {**settings, "model": {**TINY, "distilled": token}}, out=tmp_path / "run")
    told = result["distillation"]
    assert any("set model.fused=logits" in message for message in result.messages) == token
    assert told["teacher_top1"] < 0.2
    assert told["differing_labels"] > 0.8
    assert ("token_similarity" in told) == token
    if not token:
        with torch.no_grad():
            head.weight.copy_(head.weight.flip(0))
        directory.save(tmp_path / "teacher", loaded.model, preprocessing=loaded.preprocessing)
        with pytest.raises(ValueError, match="differences: teacher_weights: "):
            train("image-classification", {**settings, "model": {**TINY, "distilled": token}, "training.epochs": 25},
                  out=tmp_path / "run", resume=True)  # fmt: skip
        assert told["agreement"] > 0.8 > result["metrics"]["top1"]["value"]
    student = directory.load(tmp_path / "run").model
    image = manyheads.load(str(tmp_path / "run")).preprocessing.array(picture("above", 7))
    batch = torch.from_numpy(image)[None]
    if token:
        student.train()  # both heads: the class token has learnt nothing
        by_distillation = student(batch)[1]
        assert by_distillation.argmax() == 1
    else:
        assert student(batch).argmax() == 1


def test_a_teacher_with_other_classes_is_refused(data: Path, tmp_path: Path) -> None:
    other = ViT(preset("vit/2-8", **{**TINY, "labels": ("cat", "dog", "owl")}))
    directory.save(tmp_path / "teacher", other)
    with pytest.raises(ValueError, match=r"the teacher has 3 labels \(cat, dog, owl.*the data have 2"):
        train("image-classification", {**SMALL, "data": str(data), "teacher": str(tmp_path / "teacher")},
              out=tmp_path / "run")  # fmt: skip


def test_a_resumed_run_equals_an_uninterrupted_one(
    data: Path, tmp_path: Path, killed: Callable[[Path, Path], Path]
) -> None:
    changes = {"crop": "padded", "mixup": 0.8, "cutmix": 1.0, "erasing": 0.25, "randaugment": 2}
    settings = {
        **SMALL, "data": str(data), "training.epochs": 2, "training.checkpoint_every": 3, "smoothing": 0.1,
        "model": {**TINY, "dropout": 0.1, "stochastic_depth": 0.2},
        **{f"augmentation.{name}": value for name, value in changes.items()},
    }  # fmt: skip
    train("image-classification", settings, out=tmp_path / "whole")
    train("image-classification", settings, out=killed(tmp_path / "whole", tmp_path / "parts"), resume=True)
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts


def test_fine_tuning_supports_higher_resolution_and_other_labels(run: Path, data: Path, tmp_path: Path) -> None:
    settings = {k: v for k, v in SMALL.items() if k not in ("preset", "model")} | {"data": str(data)}
    result = train("image-classification", {**settings, "model.image_size": 16}, out=tmp_path / "larger", init=str(run))
    assert result["metrics"]["top1"]["value"] == 1.0
    model = manyheads.load(str(tmp_path / "larger"))
    assert (model.model.config.image_size, model.preprocessing.size) == (16, 16)
    with pytest.raises(ValueError, match=r"image_size is 10.*patch|10.*patch|divi"):
        train("image-classification", {**settings, "model.image_size": 10}, out=tmp_path / "x", init=str(run))


def test_an_initial_model_accepts_only_some_settings(run: Path, data: Path, tmp_path: Path) -> None:
    settings = {k: v for k, v in SMALL.items() if k not in ("preset", "model")} | {
        "data": str(data),
        "training.epochs": 1,
    }
    net = {"depths": [1, 1], "widths": [8, 16], "stem_width": 8, "image_size": 8}
    train("image-classification", {**settings, "preset": "resnet/20-small", "model": net}, out=tmp_path / "net")
    changes = {"crop": 0.5, "mean": 0.4, "resample": "bilinear"}
    train("image-classification", {**settings, "model.image_size": 16, **changes}, out=tmp_path / "larger",
          init=str(tmp_path / "net"))  # fmt: skip
    found = manyheads.load(str(tmp_path / "larger")).preprocessing
    assert (found.size, found.crop, found.mean, found.std, found.resample) == (
        16, 0.5, (0.4,) * 3, (0.5,) * 3, "bilinear"
    )  # fmt: skip
    for wrong, message in (
        ({"model.nonsense": 3}, "model.nonsense: unknown settings; valid are image_size"),
        ({"model.labels": "[a, b]"}, "model.labels: unknown settings; valid are"),
        ({"model.widths": [8, 24]}, "would change the shapes of"),
    ):
        for dry_run in (True, False):
            with pytest.raises(ValueError, match=message):
                train("image-classification", {**settings, **wrong}, out=tmp_path / "x", init=str(tmp_path / "net"),
                      dry_run=dry_run)  # fmt: skip
    with pytest.raises(ValueError, match=r"model.patch: .* would change the shapes"):
        train("image-classification", {**settings, "model.patch": 2}, out=tmp_path / "x", init=str(run))
    planned = train("image-classification", {**settings, "items": 1000, "training.epochs": 3, "model.image_size": 16},
                    out=tmp_path / "x", init=str(run), dry_run=True)  # fmt: skip
    assert planned["model"]["image_size"] == 16
    assert planned["estimate"]["images"] == 3 * 80  # there are no more
    assert planned["estimate"]["hours"] is not None


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ({"std": [0, 0, 0]}, "std"),
        ({"crop": 2}, "crop is 2"),
        ({"teacher": "nope"}, "nope"),
        ({"training.metric": "foo"}, "training.metric is foo: expected loss or top1 or top5"),
        ({"model": {**TINY, "channels": 7}}, "channels is 7: expected one of 1, 3"),
    ],
)
def test_bad_settings_are_reported_before_decoding(
    data: Path, tmp_path: Path, setting: dict[str, Any], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        pytest.fail("images were read")

    monkeypatch.setattr("manyheads.data.images.source.read_images", never)
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        train("image-classification", {**SMALL, "data": str(data), **setting}, out=tmp_path / "x")


def test_top5_for_two_labels_is_refused_before_training(data: Path, tmp_path: Path) -> None:
    message = r"training.metric is top5: expected loss or top1 or macro_f1 or mcc \(the data have 2 labels\)"
    with pytest.raises(ValueError, match=message):
        train("image-classification", {**SMALL, "data": str(data), "training.metric": "top5"}, out=tmp_path / "x")


def test_a_dry_run_counts_the_images_and_names_their_labels(data: Path, tmp_path: Path) -> None:
    planned = train("image-classification", {**SMALL, "data": str(data)}, out=tmp_path / "x", dry_run=True)
    assert planned["estimate"]["images"] == 12 * 80
    assert planned["estimate"]["hours"] is not None
    assert planned["model"]["labels"] == ("above", "below")
    hub = train("image-classification", {**SMALL, "data": "hub:o/n"}, out=tmp_path / "x", dry_run=True)
    assert hub["estimate"]["images"] is None
    assert not (tmp_path / "x").exists()


def test_more_items_than_available_are_refused(data: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    train("image-classification", {**SMALL, "data": str(data), "items": 9999, "training.epochs": 1}, out=tmp_path / "x")
    assert "items=9,999: using all 80 training items" in log.text
    assert (tmp_path / "x" / "state" / "images" / "checked.jsonl").exists()


def test_spelled_numbers_are_recognized(tmp_path: Path) -> None:
    rows = []
    for i in range(48):
        picture(("above", "below")[i % 2], i).save(tmp_path / f"{i}.png")
        rows.append(json.dumps({"image": f"{i}.png", "label": i % 2}))
    for split, part in (("train", rows[:32]), ("val", rows[32:40]), ("test", rows[40:])):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(part))
    settings = {**SMALL, "data": str(tmp_path), "names": ["7", "8"], "training.epochs": 2}
    result = train("image-classification", settings, out=tmp_path / "run")
    model = manyheads.load(str(tmp_path / "run"))
    assert model.labels == ("7", "8")
    assert evaluate(model)["top1"] == evaluate(model, str(tmp_path / "test.jsonl"))["top1"] == result["metrics"]["top1"]


def test_settings_without_effect_are_refused(run: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="test, names: only for your own data"):
        train("image-classification", {**SMALL, "names": "a,b", "test": "x"}, out=tmp_path / "x")
    with pytest.raises(ValueError, match="the distillation token has no head"):
        train("image-classification",
              {**SMALL, "data": str(data), "teacher": str(run), "model": {**TINY, "distilled": True, "fused": "none"}},
              out=tmp_path / "x2")  # fmt: skip
    with pytest.raises(ValueError, match="distillation, temperature: no effect without a teacher"):
        train("image-classification", {"distillation": "soft", "temperature": 9.0}, out=tmp_path / "x5")


@pytest.mark.parametrize(
    ("preset_name", "model"),
    [
        ("resnet/20-small", {"depths": [1, 1], "widths": [8, 16], "stem_width": 8, "image_size": 8}),
        ("nonlocal/20-small", {"depths": [1, 1], "widths": [8, 16], "stem_width": 8, "image_size": 8}),
    ],
)
def test_baselines_support_the_same_verbs(data: Path, tmp_path: Path, preset_name: str, model: dict[str, Any]) -> None:
    settings = {**SMALL, "data": str(data), "preset": preset_name, "model": model, "training.epochs": 4}
    if preset_name.startswith("nonlocal"):
        settings["model"] = {**model, "stages": [2], "every": 1}
    result = train("image-classification", settings, out=tmp_path / "run")
    assert result["metrics"]["top1"]["value"] > 0.9
    assert evaluate(manyheads.load(str(tmp_path / "run")))["top1"] == result["metrics"]["top1"]
