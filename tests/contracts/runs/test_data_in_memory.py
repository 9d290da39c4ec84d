"""Training on data in memory: the same runs, checks and fingerprints as for data in files."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import cli, directory
from manyheads.data.images.decoding import decode, plain_image
from manyheads.data.readers.memory import Rows, split_mapping
from manyheads.data.readers.squad import read_squad
from manyheads.data.sources.corpora import QuestionSource
from papers.recipes import RECIPES

datasets = pytest.importorskip("datasets")
polars = pytest.importorskip("polars")

TEXTS = [(f"a {('bad', 'good')[i % 2]} film {i}", ("no", "yes")[i % 2]) for i in range(60)]
FRAME = pd.DataFrame(TEXTS, columns=["text", "label"])
SMALL: dict[str, Any] = {"tokens": "words", "vocabulary": 60, "model.width": 16}
TINY = {"model.width": 16, "model.heads": 2, "model.layers": 1, "model.feed_forward": 16}
PAIRS = [(f"one {i} man", f"ein {i} Mann") for i in range(60)]
TAGGED = [(["John", "is", str(i)], ["B-PER", "O", "O"]) for i in range(60)]
LINES = [f"Hello number {i}. It is a nice day.\nAnother day {i}." for i in range(60)]
PIXELS = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)


class TorchImages(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(PIXELS[i])[None] / 255, i % 2


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def classify(data: Any, out: str = "r", **more: Any) -> Any:
    options = {"out": out, "steps": 2, "threads": 1, "progress": False, **more}
    return manyheads.train("text-classification", SMALL, train=data, **options)


def with_label_names(rows: Sequence[tuple[str, str]]) -> Any:
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    columns = {"text": [text for text, _ in rows], "label": [int(label == "yes") for _, label in rows]}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def test_every_form_of_data_gives_the_run_of_the_file() -> None:
    FRAME.to_csv("d.csv", index=False)
    expected = classify("d.csv", "file")
    columns = FRAME.to_dict("list")
    forms = [TEXTS, FRAME.to_dict("records"), FRAME, polars.from_pandas(FRAME), with_label_names(TEXTS)]
    forms += [columns, {"train": columns}, (FRAME.text, FRAME.label), tuple(columns.values()), FRAME.to_numpy()]
    forms += [FRAME.to_records(index=False), np.array(TEXTS)]
    forms += [with_label_names(TEXTS).with_format(kind) for kind in ("numpy", "torch")]
    for number, data in enumerate(forms):
        run = classify(data, f"r{number}")
        assert run["data"]["fingerprints"] == expected["data"]["fingerprints"]
        assert run["metrics"] == expected["metrics"]
        assert run["data"]["in_memory"]


@pytest.mark.parametrize(
    ("recipe", "settings", "data"),
    [
        ("translation", {"vocabulary": 80, "model.width": 16}, PAIRS),
        ("translation", {"vocabulary": 80, "model.width": 16}, [{"translation": {"en": a, "de": b}} for a, b in PAIRS]),
        ("tagging", {"vocabulary": 99, **TINY}, TAGGED),
        ("tagging", {"vocabulary": 99, **TINY}, pd.DataFrame([{"words": np.array(a), "tags": b} for a, b in TAGGED])),
        ("language-modeling", {"tokenizer": "character", "block": 16, "rows": 2, **TINY}, LINES),
        ("bert/pretraining", {"vocabulary": 99, "length": 16, **TINY}, pd.DataFrame({"text": LINES})),
        ("image-classification", TINY, [(Image.fromarray(p), ("a", "b")[i % 2]) for i, p in enumerate(PIXELS)]),
        ("image-classification", {"names": ["a", "b"], **TINY}, TorchImages()),
    ],
)  # fmt: skip
def test_every_task_reads_data_in_memory(recipe: str, settings: dict[str, Any], data: Any) -> None:
    run = manyheads.train(recipe, settings, train=data, steps=1, threads=1, out="r", progress=False)
    assert run.directory == Path("r")
    assert np.isfinite(list(run.metrics.values())).all()
    assert sum(run["data"]["items"].values()) == len(data)
    assert run.predictor.path == Path("r")


@pytest.mark.parametrize("values", [(1, 4, 5), (True, False), (2.0, 3.0)])
def test_labels_come_back_in_the_type_of_the_data(values: tuple[Any, ...], capsys: pytest.CaptureFixture[str]) -> None:
    texts = [(f"film {i}", values[i % len(values)]) for i in range(60)]
    images = [(Image.fromarray(p), values[i % len(values)]) for i, p in enumerate(PIXELS)]
    more: dict[str, Any] = {"steps": 1, "threads": 1, "progress": False}
    runs = [classify(texts), manyheads.train("image-classification", TINY, train=images, out="i", **more)]
    several: tuple[list[Any], ...] = (["film 1", "film 2"], [images[0][0], images[1][0]])
    for run, inputs in zip(runs, several, strict=True):
        for model in (run.predictor, manyheads.load(run.directory)):
            assert model.labels == tuple(sorted(values))
            found = [label.label for row in (*model.classify(inputs), model.classify(inputs[0])) for label in row]
            assert {type(label) for label in found} == {type(values[0])}
            assert set(found) <= set(values)
            outcome = model.outcome(texts if model.reads == "texts" else images)
            assert set(outcome.outputs) <= set(outcome.references)
    assert cli.main(["classify", "r", "film 1", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["labels"][0]["label"] in {str(value).removesuffix(".0") for value in values}
    directory.load("r").save("copy")
    assert manyheads.load("copy").labels == tuple(sorted(values))


def test_a_label_type_that_does_not_fit_is_refused() -> None:
    classify(TEXTS)
    config = json.loads(Path("r/config.json").read_text())
    assert "label_type" not in config
    for wrong in ("int", "list", 3):
        Path("r/config.json").write_text(json.dumps({**config, "label_type": wrong}))
        with pytest.raises(
            ValueError, match="'label_type' is .*; expected a type of all names, of str, int, float, bool"
        ):
            manyheads.load("r")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"text": ["a", "b"], "label": ["x"]}, "train: the columns have 2, 1 values: expected equal numbers"),
        ((["a", "b"], ["x", "y"]), "train: found 2 lists of 2 values, rows or columns; give a list of tuples"),
        ((FRAME[["text"]], FRAME.label), "expected a dictionary or a tuple"),
        ((FRAME.text, FRAME.label[:9]), "train: the columns have 60, 9 values"),
        (np.zeros((4, 4, 4)), "expected a dictionary or a tuple"),
        ({"text": "a"}, "expected a split 'train', found 'text'"),
        ([("a", "x"), ("b", None)], r"train: row 2: .* skip such lines with skip_bad_lines=True"),
    ],
)
def test_other_forms_are_refused(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classify(data)


def test_questions_are_read_from_tuples() -> None:
    rows = Rows("train", [("Ann lives in Rome.", "Where?", "Rome", 13)], QuestionSource.tuples)
    assert read_squad(rows).items[0].answers[0].text == "Rome"


def test_a_run_has_its_model_metrics_and_history(capsys: pytest.CaptureFixture[str]) -> None:
    splits = {"train": TEXTS, "validation": TEXTS[:9], "test": with_label_names(TEXTS[:7])}
    run = classify(splits, log_every=1)
    assert run["data"]["items"] == {"train": 60, "validation": 9, "test": 7}
    assert sum(parameter.numel() for parameter in run.model.parameters()) == run["parameters"]
    assert run.metrics["accuracy"] == run["metrics"]["accuracy"]["value"]
    assert run["scored"] == "test"
    assert run["validation"].keys() == run.validation.keys() == {"loss", "accuracy", "f1", "macro_f1", "mcc"}
    assert run.metrics.keys() == {"accuracy", "f1", "macro_f1", "mcc"}
    assert [entry["step"] for entry in run.history if "loss" in entry] == [1, 2]
    frame = pd.DataFrame(run.history)
    assert frame["validation_loss"].iloc[-1] == run.validation["loss"]
    assert frame["loss"].notna().sum() == 2
    assert "learning_rate" in (run.history._repr_html_() or "")
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match=r"trained on data in memory; give data to score with --data PATH"):
        run.predictor.outcome()


def test_a_callback_stops_a_run_which_then_resumes() -> None:
    entries: list[dict[str, Any]] = []
    run = classify(TEXTS, steps=4, log_every=1, callbacks=[entries.append, lambda entry: entry["step"] < 2])
    assert not run
    assert [entry["step"] for entry in entries if "loss" in entry] == [1, 2]
    assert run.predictor.classify("a good film")[0].label in ("no", "yes")
    with pytest.raises(ValueError, match=r"trained on data in memory: give the same data again"):
        manyheads.train(resume="r")
    with pytest.raises(ValueError, match=r"r: the data has changed since the run was started"):
        manyheads.train(resume="r", train=TEXTS[:50])
    assert manyheads.train(resume="r", train=FRAME)["steps"] == 4


def labeled(change: Callable[[list[Any]], None]) -> pd.DataFrame:
    labels: list[Any] = [0, 1] * 30
    change(labels)
    return FRAME.assign(label=pd.Series(labels, dtype=object))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FRAME.rename(columns={"label": "y"}), r"train: row 1: found no column for `label` among 'text', 'y'"),
        (labeled(lambda labels: labels.__setitem__(2, None)), r"train: row 3: expected a label in 'label', found None"),
        (labeled(lambda labels: labels.__setitem__(2, float("nan"))), r"train: row 3: expected a label .* found nan"),
        (
            labeled(lambda labels: labels.__setitem__(4, "no")),
            r"train: row 5: 'label' mixes numbers and words: found 'no', but numbers in row 1",
        ),
        ([("a text",)], r"train: row 1: expected a dictionary or a tuple \(text, label\) or .*, found 1 values"),
        ([3], r"train: row 1: expected a dictionary or a tuple .*, found int"),
        ([(4, "a"), (5, "b")], r"train: row 1: expected text in 'text', found 4"),
        (iter(TEXTS), "train is a list_iterator: expected a list, a frame or a dataset with a length"),
        ({"test": TEXTS}, "train: expected a split 'train', found 'test'"),
        ({"train": None}, "train: expected a split 'train', found no data"),
        (
            {"train": TEXTS, "foo": TEXTS},
            r"train: unknown split 'foo'; expected train, validation \(or val, dev, eval\)",
        ),
        ({"train": TEXTS, "val": TEXTS, "dev": TEXTS}, "found several validation splits in 'train', 'val', 'dev'"),
    ],
)
def test_bad_data_are_refused_in_one_line_and_nothing_is_written(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        classify(data, out="runs/r")
    assert "\n" not in str(refused.value)
    assert not Path("runs").exists()


def test_normalized_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"train: row 1: expected pixels as integers from 0 to 255 .* leave out norm"):
        manyheads.train("image-classification", train=[(torch.randn(1, 8, 8), "a")])


def test_recipes_that_generate_their_data_refuse_others() -> None:
    with pytest.raises(ValueError, match="moving-digits generates its own data: leave out train"):
        manyheads.train("moving-digits", train=PAIRS, recipes=RECIPES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "folder"}, "give train or data, not both"),
        ({"train": "train.csv", "data": "folder"}, "give train or data, not both"),
        ({"overrides": {"data": "folder"}}, "give train or data, not both"),
        ({"validation": TEXTS, "overrides": {"validation": "v.csv"}}, "validation is given twice, .* the settings"),
        ({"train": {"train": TEXTS, "dev": TEXTS}, "validation": TEXTS}, "validation is given twice, .* the mapping"),
        ({"train": {"train": TEXTS, "test": TEXTS}, "test": TEXTS}, "test is given twice, .* the mapping"),
        ({"train": "a long text " * 50}, r"train: expected a path, found a text of 600 char.*; .* train=\[TEXT, ...\]"),
        ({"train": None, "data": "a long text " * 50}, r"data: expected a path, found .*; .* train=\[TEXT, ...\]"),
        ({"callbacks": print}, r"callbacks: expected a list of functions, found <.*print>; .* callbacks=\[FUNCTION\]"),
        ({"callbacks": [5]}, "callbacks: expected a list of functions, found 5"),
        ({"max_minutes": -1}, "max_minutes: expected 0 or a positive number, found -1"),
        ({"processes": 0}, "processes: expected a whole number from 1 to 1024, found 0"),
    ],
)
def test_arguments_that_contradict_or_have_no_effect_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        manyheads.train("text-classification", **{"train": TEXTS, "out": "runs/r", **arguments})
    assert "\n" not in str(refused.value)
    assert not Path("runs").exists()


def test_the_splits_of_a_mapping_are_named_like_files() -> None:
    splits = split_mapping({"train": 1, "dev": 2, "testing": 3, "unsupervised": 4, "other": None})
    assert splits == {"train": 1, "validation": 2, "test": 3}
    assert split_mapping({"train": 1, "eval": 2}) == {"train": 1, "validation": 2}
    assert split_mapping({"train": 1, "eval": 2, "valid": 3}) == {"train": 1, "test": 2, "validation": 3}


def first_cell(image: Any) -> Any:
    return next(iter(Rows("train", [(image, "a")], (("image", "label"),)))).cells["image"]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "HSV", "YCbCr", "I", "I;16"])
def test_images_of_every_mode_are_converted_like_files(mode: str) -> None:
    image = Image.new(mode, (4, 3)) if mode.startswith("I") else Image.fromarray(PIXELS[0]).convert("RGB").convert(mode)
    decoded = decode(first_cell(image)).image
    assert decoded.mode in ("L", "RGB")
    assert decoded.tobytes() == plain_image(image).tobytes()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.rand(5, 32, 32), "expected an image, found 5 x 32 x 32 values"),
        (np.zeros((0, 5, 3)), "expected an image, found 0 x 5 x 3 values"),
        (np.array([["a", "b"]]), "expected an image, found 1 x 2 values of type <U1"),
        (Image.new("F", (4, 4)), "floating-point pixels have an unknown black and white level"),
        (Image.new("RGB", (0, 4)), "expected an image, found 0 x 4 pixels"),
    ],
)
def test_values_that_are_no_images_are_refused_with_their_row(image: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"train: row 1: .*{message}"):
        first_cell(image)


@pytest.mark.parametrize("test", [[{"text": "a film"}], with_label_names(TEXTS[:2]).map(lambda _: {"label": -1})])
def test_test_data_without_labels_are_not_scored(test: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run = classify(TEXTS, test=test, progress=None)
    assert [*run["data"]["items"]] == ["train", "validation"]
    assert "test: the test data have no labels, so they are not scored" in caplog.messages


@pytest.mark.parametrize(("answer", "steps"), [(np.bool_(False), 1), (False, 1), (0, 2), (None, 2)])
def test_a_run_stops_if_a_callback_returns_false(answer: Any, steps: int) -> None:
    run = classify(TEXTS, log_every=1, callbacks=[lambda entry: answer])
    assert [entry["step"] for entry in run.history if "loss" in entry] == [*range(1, steps + 1)]


def test_a_model_is_scored_on_data_in_memory() -> None:
    FRAME.to_csv("d.csv", index=False)
    predictor: Any = classify(TEXTS, test=TEXTS[:9]).predictor
    expected = predictor.outcome("d.csv").metrics
    assert [predictor.outcome(data=data).metrics for data in (TEXTS, FRAME, Path("d.csv"))] == [expected] * 3
    for data, message in [(5, "data is a int: expected a list"), ([("a", "?")], "data: row 1: expected one of the")]:
        with pytest.raises(ValueError, match=message):
            predictor.outcome(data)
