"""Files of unreleased versions are refused in one line that names the commit that reads them; nothing is changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import manyheads
from manyheads import directory
from manyheads.data.sources.corpora import LabeledSource
from manyheads.models.presets import build, preset
from manyheads.training.checkpoints import _digest
from manyheads.versions import LAST_READER, upgrade

SETTINGS: dict[str, Any] = {
    "tokens": "words", "vocabulary": 60, "model.width": 16, "steps": 4, "training.warmup": 1, "threads": 1,
    "training.checkpoint_every": 2,
}  # fmt: skip
EARLIER = rf": an earlier, unreleased version wrote it\. Commit {LAST_READER} of Manyheads is the last that reads it$"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped after two steps, in the folder `r` of the current directory."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"a {('bad', 'good')[i % 2]} film {i}\t{('no', 'yes')[i % 2]}\n" for i in range(120))
    Path("d.tsv").write_text(f"text\tlabel\n{rows}")
    Path("t.tsv").write_text("text\tlabel\na good film\tyes\n")
    settings = {**SETTINGS, "data": "d.tsv", "test": "t.tsv"}
    out = Path("r")
    manyheads.train("text-classification", settings, out=out, callbacks=[lambda entry: entry["step"] < 2])
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def without(path: Path, *keys: str) -> None:
    """Remove an entry of a JSON file, in a checkpoint together with its checksum."""
    whole = json.loads(path.read_text())
    is_checkpoint = path.name.startswith("checkpoint-")
    node = content = whole["content"] if is_checkpoint else whole
    for key in keys[:-1]:
        node = node[key]
    del node[keys[-1]]
    path.write_text(json.dumps({"content": content, "sha256": _digest(content)} if is_checkpoint else whole))


@pytest.mark.parametrize(
    ("file", "keys", "missing"),
    [
        ("run.json", ("given",), "given"),
        ("run.json", ("settings", "truncate"), "truncate"),
        ("run.json", ("settings", "training", "optimizer"), "training.optimizer"),
        ("run.json", ("settings", "columns", "pair"), "columns.pair"),
        ("checkpoint-*.json", ("config", "optimizer"), "optimizer"),
        ("checkpoint-*.json", ("settings", "columns", "pair"), "columns.pair"),
    ],
)
def test_a_run_without_a_setting_of_this_version_is_refused(
    run: Path, file: str, keys: tuple[str, ...], missing: str
) -> None:
    for path in (run / "state").glob(file):
        without(path, *keys)
    before = contents(run)
    with pytest.raises(ValueError, match=f"^r: expected {re.escape(missing)}, found none{EARLIER}"):
        manyheads.train(resume=run)
    assert contents(run) == before


def test_a_run_that_did_not_save_its_settings_is_refused(run: Path) -> None:
    (run / "state" / "run.json").unlink()
    before = contents(run)
    for recipe in (None, "text-classification"):
        with pytest.raises(ValueError, match=f"^r: expected state/run.json, found none{EARLIER}"):
            manyheads.train(recipe, out=run, resume=True)
    assert contents(run) == before


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"recipe": "text-classification", "settings": 3}'])
def test_a_damaged_record_of_a_run_is_named(run: Path, content: str) -> None:
    if content.startswith('{"'):
        whole = json.loads((run / "state" / "run.json").read_text())
        content = json.dumps({**whole, **json.loads(content)})
    (run / "state" / "run.json").write_text(content)
    before = contents(run)
    with pytest.raises(ValueError, match=r"^r.*(run\.json: invalid JSON|expected a JSON object|is damaged)") as error:
        manyheads.train(resume=run)
    assert "\n" not in str(error.value)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("keys", "missing"),
    [(("data", "kind"), "kind"), (("data", "fraction"), "fraction"), (("data", "fingerprints"), "fingerprints")],
)
def test_a_result_without_an_entry_of_this_version_is_refused(run: Path, keys: tuple[str, ...], missing: str) -> None:
    manyheads.train(resume=run)
    assert manyheads.load(run).outcome().metrics
    without(run / "result.json", *keys)
    with pytest.raises(ValueError, match=f"result.json: expected {missing}, found none{EARLIER}"):
        manyheads.load(run).outcome()


def test_changed_files_are_named_and_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, read = 0, LabeledSource.read

    def counted(self: LabeledSource) -> Any:
        nonlocal count
        count += 1
        return read(self)

    monkeypatch.setattr(LabeledSource, "read", counted)
    text = Path("t.tsv").read_text()
    Path("t.tsv").write_text(f"{text}one more\tno\n")
    with pytest.raises(ValueError, match=r"^r: the data has changed since the run was started: t\.tsv; resume it"):
        manyheads.train(resume=run)
    Path("t.tsv").write_text(text)
    Path("d.tsv").write_text(Path("d.tsv").read_text().replace("film 7", "film seven"))
    with pytest.raises(ValueError, match=r"^r: the data has changed since the run was started: d\.tsv; resume it"):
        manyheads.train(resume=run)
    assert count == 2


def lacking_a_setting(settings: dict[str, Any], weights: dict[str, Any]) -> None:
    del settings["dropout"]


def of_a_former_type(settings: dict[str, Any], weights: dict[str, Any]) -> None:
    settings["model_type"] = "manyheads-seq2seq-lstm"


def with_a_former_weight(settings: dict[str, Any], weights: dict[str, Any]) -> None:
    weights["former.weight"] = weights.pop(next(iter(weights)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lacking_a_setting, rf"config\.json: expected dropout, found none{EARLIER}"),
        (of_a_former_type, rf"config\.json: expected a model type of this version .*{EARLIER}"),
        (with_a_former_weight, rf"not match.*; if an earlier, unreleased version wrote it, commit {LAST_READER} reads"),
    ],
)  # fmt: skip
def test_an_earlier_model_directory_is_refused(tmp_path: Path, change: Callable[..., None], message: str) -> None:
    model = build(preset("seq2seq-rnn/tiny", source_vocab=14, target_vocab=14, pad=0, end=1, start=2))
    assert directory.save(tmp_path, model) == "manyheads-seq2seq-rnn"
    settings = json.loads((tmp_path / "config.json").read_text())
    weights = load_file(tmp_path / "model.safetensors")
    change(settings, weights)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message) as error:
        directory.load(tmp_path)
    assert "\n" not in str(error.value)


def test_today_no_record_is_converted() -> None:
    record = {"any": "record"}
    assert upgrade(record) is record
