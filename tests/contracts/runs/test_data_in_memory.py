"""Training on data in memory: the same runs, checks and fingerprints as for data in files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import manyheads
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.squad import read_squad
from manyheads.data.sources.corpora import QuestionSource

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
    forms = [TEXTS, FRAME.to_dict("records"), FRAME, polars.from_pandas(FRAME), with_label_names(TEXTS)]
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
        ("language-modelling", {"tokenizer": "character", "block": 16, "rows": 2, **TINY}, LINES),
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


def test_questions_are_read_from_tuples() -> None:
    rows = Rows("train", [("Ann lives in Rome.", "Where?", "Rome", 13)], QuestionSource.tuples)
    assert read_squad(rows).items[0].answers[0].text == "Rome"


def test_a_run_has_its_model_metrics_and_history(capsys: pytest.CaptureFixture[str]) -> None:
    splits = {"train": TEXTS, "validation": TEXTS[:9], "test": with_label_names(TEXTS[:7])}
    run = classify(splits, log_every=1)
    assert run["data"]["items"] == {"train": 60, "validation": 9, "test": 7}
    assert sum(parameter.numel() for parameter in run.model.parameters()) == run["parameters"]
    assert run.metrics["accuracy"] == run["metrics"]["accuracy"]["value"]
    assert [entry["step"] for entry in run.history if "loss" in entry] == [1, 2]
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
    with pytest.raises(ValueError, match="universal/copy generates its own data: leave out train"):
        manyheads.train("universal/copy", train=PAIRS)
