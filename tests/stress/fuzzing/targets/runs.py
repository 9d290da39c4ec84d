"""Files of runs, possibly from other users: checkpoints, records, caches, and settings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manyheads.core.config import as_dict
from manyheads.data.images.checking import read_checks
from manyheads.data.readers.texts import read_texts
from manyheads.data.sources.recorded import KINDS, recorded_data
from manyheads.data.sources.source import UNRECORDED
from manyheads.data.text.store import TokenStore, TokenStream
from manyheads.runs.overrides import apply, from_arguments, from_file
from manyheads.tasks.evaluation import record_of
from manyheads.training.checkpoints import Checkpoints
from manyheads.training.run_directory import describe_unfinished
from manyheads.training.run_log import read_metrics
from manyheads.training.state import Counters, capture, restore
from papers.recipes import ALL as RECIPES
from tests.stress.fuzzing.inputs import Files, read
from tests.stress.fuzzing.targets.data import PAIRS, ROWS, TAGGED, encoded, jsonl
from tests.stress.fuzzing.targets.target import Target


def _parts() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def _checkpoints(folder: Path) -> list[Files]:
    state = folder / "run" / "state"
    state.mkdir(parents=True, exist_ok=True)
    model, optimizer = _parts()
    with Checkpoints(state) as checkpoints:
        for step in (4, 8):
            snapshot = checkpoints.snapshot(step, dict(model.state_dict()))
            tensors, content = capture(model, optimizer, Counters(), {})
            checkpoints.save(step, tensors, content, [snapshot])
        checkpoints.wait()
    (state / "command.json").write_text(json.dumps("manyheads train x --resume"))
    (folder / "run" / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25, "validation": {"loss": 1}}\n'
    )
    return [read(folder / "run")]


def _checkpoint(folder: Path) -> None:
    read_metrics(folder / "metrics.jsonl")
    describe_unfinished(folder)
    with Checkpoints(folder / "state") as checkpoints:
        last = checkpoints.latest()
    if last is not None:
        content, tensors = last
        model, optimizer = _parts()
        restore(model, optimizer, {}, tensors, content)


QUESTIONS = [
    {"context": f"In {city}.", "question": "Where?", "answers": {"text": [city], "answer_start": [3]}}
    for city in ("Paris", "Rome")
]
ROWS_OF: dict[str, list[dict[str, Any]]] = {
    "parallel": PAIRS,
    "text-pairs": [{"text": f"a {i}", "pair": f"b {i}"} for i in range(4)],
    "tagged": TAGGED,
    "questions": QUESTIONS,
    "objects": [
        {
            "images": [{"id": 1, "file_name": "0.png"}],
            "categories": [{"id": 1, "name": "a"}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2]}],
        },
    ],
    "images": [{"image": f"{i}.png", "label": "ab"[i % 2]} for i in range(4)],
    **dict.fromkeys(("labeled", "texts", "documents"), ROWS),
}


def rows_of(kind: str) -> list[dict[str, Any]]:
    """Return what a file of this kind of data may hold."""
    assert kind in ROWS_OF, f"data of kind {kind!r}: add rows to ROWS_OF in tests/stress/fuzzing/targets/runs.py"
    return ROWS_OF[kind]


def _records(_: Path) -> list[Files]:
    """Return records of every kind of data, with fingerprints that match no data."""
    made: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for name, kind in KINDS.items():
        source = kind(data="a.jsonl", test="a.jsonl")
        known = {key: value for key, value in as_dict(source).items() if key not in UNRECORDED}
        digits = {"test": "0" * 16, "validation": "1" * 16}
        record = {"data": {"kind": name, **known, "fingerprints": digits}}
        made.append((record, rows_of(name)))
    pixels = {f"{i}.png": encoded("PNG", mode) for i, mode in enumerate(("RGB", "L", "P", "LA"))}
    return [{"result.json": json.dumps(record).encode(), "a.jsonl": jsonl(rows), **pixels} for record, rows in made]


def _record(folder: Path) -> None:
    """Look for the data of a foreign record. The data never match the record's fingerprint."""
    os.chdir(folder)
    recorded = recorded_data(record_of(folder))
    if recorded is None or max(getattr(recorded.source, name, 0) for name in ("size", "tested")) > 10_000:
        return  # a built-in corpus with millions of items takes too long
    for split in ("test", "validation"):
        try:
            recorded.read(split)
        except (ValueError, OSError) as error:
            told = str(error)
            if "changed since the run" not in told and "no such file" not in told and "without" not in told:
                raise


def _settings(_: Path) -> list[Files]:
    made: list[Files] = []
    for name, recipe in RECIPES.items():
        values = as_dict(recipe.config)
        lines = [
            f"{key}={json.dumps(value)}"
            for key, value in values.items()
            if not isinstance(value, dict) and value not in (None, "", [], ())
        ]
        lines += [
            f"training.{key}={json.dumps(value)}"
            for key, value in list(values.get("training", {}).items())[:6]
            if value is not None
        ]
        made.append(
            {
                "recipe.txt": name.encode(),
                "arguments.txt": "\n".join(lines[:14]).replace('"', "").encode(),
                "settings.yaml": b"training:\n  steps: 10\n" if "training" in values else b"seed: 1\n",
            }
        )
    return made


def _setting(folder: Path) -> None:
    def text(name: str) -> str:
        return (
            (folder / name).read_text(encoding="utf-8", errors="surrogateescape") if (folder / name).is_file() else ""
        )

    recipe = RECIPES.get(text("recipe.txt"), RECIPES["translation"])
    settings = [
        *from_file(folder / "settings.yaml"),
        *from_arguments(text("arguments.txt").split("\n") if text("arguments.txt") else []),
    ]
    apply(recipe.config, settings)


def _caches(folder: Path) -> list[Files]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "a.tokens").open("wb") as file:
        np.save(file, np.array([0, 2, 5], np.int64))
        np.save(file, np.arange(5, dtype=np.uint16))
    np.save(folder / "b.npy", np.arange(5, dtype=np.uint16))
    (folder / "b.npy").rename(folder / "b.stream")
    (folder / "checked.jsonl").write_text('["a1", [2, 3], "RGB", 18, [], "stamp"]\n')
    return [read(folder)]


def _cache(folder: Path) -> None:
    read_checks(folder / "checked.jsonl")
    if (folder / "a.tokens").is_file():
        store = TokenStore(folder / "a.tokens")
        for i in range(min(len(store), 100)):
            store[i]
    if (folder / "b.stream").is_file():
        stream = TokenStream(folder / "b.stream")
        stream[0 : min(100, len(stream))]


def _surveys(folder: Path) -> list[Files]:
    (folder / "texts").mkdir(parents=True, exist_ok=True)
    (folder / "texts" / "a.txt").write_text("A text.\n")
    read_texts(folder / "texts", cache_folder=folder / "kept").facts  # noqa: B018  # written now
    return [read(folder / "kept")]


TARGETS = {
    "checkpoints": Target(_checkpoints, _checkpoint),
    "result.json": Target(_records, _record, readable=("/etc/passwd",)),
    "settings": Target(_settings, _setting),
    "caches": Target(_caches, _cache),
}
