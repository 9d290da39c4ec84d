"""Runs of an earlier version: unfinished runs are resumed, and finished runs are scored on their recorded data.

`former_runs.json` holds, by name, the output of commit a7811cc for the runs below: the settings in their checkpoints,
which a resumed run must find unchanged, and the data section of result.json.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import manyheads
from manyheads.data.sources.recorded import source_of
from manyheads.training.checkpoints import _digest
from papers.recipes import ALL
from papers.universal.source import DigitSource

FORMER = json.loads(Path(__file__).with_name("former_runs.json").read_text(encoding="utf-8"))
COUNT = 60
SKIPPING = ("parallel", "labeled")  # runs with --skip-bad-lines
HELD_OUT_ANEW = ("parallel", "two files", "labeled", "tagged")
SMALL = {"model.width": 16, "model.heads": 2, "model.layers": 1, "model.feed_forward": 16}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "parallel": ("translation", {"data": "parallel", "vocabulary": 60, "model.width": 16}),
    "two files": (
        "translation",
        {"data": "two/a.en,two/a.de", "test": "two/t.en,two/t.de", "vocabulary": 60, "model.width": 16},
    ),
    "labeled": (
        "text-classification",
        {
            "data": "labeled", "columns.text": "body", "columns.label": "mark", "names": ["no", "yes"],
            "tokens": "words", "vocabulary": 99,
        },
    ),
    "tagged": ("tagging", {"data": "tagged", "vocabulary": 99, **SMALL}),
    "texts": ("language-modeling", {"data": "texts", "tokenizer": "character", "block": 16, "rows": 2}),
    "documents": ("bert/pretraining", {"data": "documents.txt", "vocabulary": 99, "length": 16, **SMALL}),
    "digits": (
        "universal/copy",
        {"model": "lstm", "network.width": 16, "size": 60, "longest": 5, "lengths": [5, 9], "tested": 3},
    ),
    "images": ("image-classification", {"batch_items": 256, **SMALL}),
    "directions": ("reading", {"data": "tagged", "vocabulary": 99, **SMALL}),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data that the runs were trained on, where their records say they lie."""
    numbers = range(COUNT)
    files = {
        "parallel/train.tsv": "".join(f"one {i} man\tein {i} Mann\n" for i in numbers),
        "parallel/test.tsv": "a dog\tein Hund\nskipped, which the record does not tell\n",
        "two/a.en": "".join(f"one {i} man\n" for i in numbers),
        "two/a.de": "".join(f"ein {i} Mann\n" for i in numbers),
        "two/t.en": "a dog\n",
        "two/t.de": "ein Hund\n",
        "labeled/train.csv": "body,mark\n" + "".join(f"text {i} is here,{i % 2}\n" for i in numbers),
        "labeled/test.csv": "body,mark\na text,0\n,1\n",  # the second line was skipped
        "tagged/train.txt": "".join(f"w{i} B-X\n\nv{i} O\n\n" for i in numbers),
        "tagged/test.txt": "a B-X\n\n",
        "texts/train.txt": "".join(f"line {i}\n" for i in numbers),
        "texts/test.txt": "the end\n",
        "documents.txt": "".join(f"One {i}. Two {i}.\n\n" for i in numbers),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_checkpoint_settings_keep_their_format(folder: Path, name: str) -> None:
    recipe, settings = RUNS[name]
    once = {"training.steps": 1, "training.warmup": 1}
    skip = name in SKIPPING
    manyheads.train(recipe, {**once, **settings}, out=folder / "run", max_minutes=0, skip_bad_lines=skip, recipes=ALL)
    (checkpoint,) = (folder / "run").glob("**/state/checkpoint-*.json")
    held, former = json.loads(checkpoint.read_text())["content"]["settings"], dict(FORMER[name]["settings"])
    if name in HELD_OUT_ANEW:  # New runs hold out other items. A resumed run finds its own.
        record = json.loads(json.dumps(FORMER[name]["record"]).replace("{folder}", str(folder)))
        source = source_of(record, DigitSource)
        assert source is not None
        if name == "labeled":  # the record of this version lacks the names
            source = replace(source, names=("no", "yes"))  # type: ignore[call-arg]
        fingerprints = former.pop("fingerprints")
        resumed, splits = source.read_matching(fingerprints)
        assert resumed.describe(splits)["fingerprints"] == fingerprints != held.pop("fingerprints")
    younger = {key: getattr(ALL[recipe].config, key) for key in held.keys() - former.keys()}
    assert held == former | younger


@pytest.mark.parametrize("name", [name for name in RUNS if name != "directions"])  # no verb scores an encoder of these
def test_a_record_identifies_its_test_data(folder: Path, name: str) -> None:
    record = json.loads(json.dumps(FORMER[name]["record"]).replace("{folder}", str(folder)))
    source = source_of(record, DigitSource)
    assert source is not None
    split = "validation" if name == "documents" else "test"
    labels = {"labeled": ("no", "yes"), "tagged": ("O", "B-X")}.get(name, ())
    assert len(source.read_again(split, labels=labels)) > 0


def without(path: Path, *keys: str) -> None:
    """Rewrite a checkpoint as a version without these settings wrote it."""
    written = json.loads(path.read_text())
    *groups, last = keys
    node = written["content"]
    for key in groups:
        node = node[key]
    del node[last]
    path.write_text(json.dumps(written | {"sha256": _digest(written["content"])}))


@pytest.mark.parametrize(
    ("keys", "other"),
    [
        (("config", "ema"), {"training.ema": 0.9}),
        (("config", "accumulate"), {"training.accumulate": 2}),
        (("settings", "truncate"), {"truncate": True}),
        (("settings", "columns", "pair"), {"truncate": True}),
        (("settings", "batch_tokens"), {"batch_tokens": 512}),
    ],
    ids=str,
)
def test_a_setting_missing_in_an_older_run_has_its_default(
    folder: Path, keys: tuple[str, ...], other: dict[str, Any]
) -> None:
    recipe, settings = RUNS["labeled"]
    settings = {"training.steps": 2, "training.warmup": 1, **settings}
    manyheads.train(recipe, settings, out=folder / "run", max_minutes=0, skip_bad_lines=True)
    (checkpoint,) = (folder / "run" / "state").glob("checkpoint-*.json")
    without(checkpoint, *keys)
    (changed,) = other
    with pytest.raises(ValueError, match=f"{changed.split('.')[-1]}: .* -> "):
        manyheads.train(recipe, {**settings, **other}, out=folder / "run", resume=True, skip_bad_lines=True)
    result = manyheads.train(recipe, settings, out=folder / "run", resume=True, skip_bad_lines=True)
    assert result["steps"] == 2
