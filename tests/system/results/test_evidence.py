"""`make evidence`: interrupted runs are resumed, changed settings are reported, and finished runs are recorded once."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import results_keep
from lab.evidence import __main__ as evidence
from lab.evidence import standing
from lab.evidence.listed import LIST, Listed, read_list
from lab.evidence.session import GRACE, SIGNALS
from lab.evidence.standing import MINILM, Standing, kept_records
from manyheads import cli, files
from manyheads.runs.overrides import apply, from_arguments
from manyheads.tasks.registry import find
from papers.recipes import ALL
from tests.paths import ROOT

CLAIMS = '[claims]\na = "one"\nb = "two"\n'
LM = """language-modeling data=$DATA/text.txt tokenizer=character block=16 rows=2 model.layers=1 model.width=16
training.checkpoint_every=100 training.validate_every=1000 threads=1 training.steps="""
LISTED = read_list(LIST)[1]
FIRST = [next(run for run in LISTED if run.entry == entry) for entry in dict.fromkeys(run.entry for run in LISTED)]


def entry(name: str, train: str, **more: Any) -> str:
    fields = {"name": name, "claim": "a", "shows": "it", "train": train, "minutes": 1, **more}
    return "[[run]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results_keep, "RECORDS", tmp_path / "records")
    return tmp_path / "records" / "runs"


@pytest.fixture
def call(tmp_path: Path, records: Path) -> Iterator[Callable[..., int]]:
    """Return a function that runs the command on a list of entries."""
    data = tmp_path / "data"
    (data / "labeled").mkdir(parents=True)
    (data / "text.txt").write_text("a bad film, a good film and a cat in a hat. " * 40)
    for split in ("train", "val", "test"):
        rows = "".join(f"a good cat {i}\t1\na bad hat {i}\t0\n" for i in range(4))
        (data / "labeled" / f"{split}.tsv").write_text("text\tlabel\n" + rows)

    def command(*words: str, entries: list[str]) -> int:
        (tmp_path / "list.toml").write_text(CLAIMS + "".join(entries))
        return evidence.main(
            ["--file", str(tmp_path / "list.toml"), "--runs", str(tmp_path / "runs"), "--data", str(data), *words]
        )

    handlers = [signal.getsignal(each) for each in SIGNALS]
    yield command
    assert [signal.getsignal(each) for each in SIGNALS] == handlers


def listed(tmp_path: Path, *entries: str) -> list[Listed]:
    (tmp_path / "list.toml").write_text(CLAIMS + "".join(entries))
    return read_list(tmp_path / "list.toml")[1]


def finished(folder: Path, run: Listed) -> None:
    """As if it had been trained."""
    (folder / run.name).mkdir(parents=True)
    record = {"recipe": "r", "overrides": {"data": "/somebody/s/data"}, "data": {}, "metrics": {}, "seed": 1}
    (folder / run.name / "result.json").write_text(json.dumps(record))
    (folder / run.name / "config.json").write_text("{}")
    note = {"settings": run.settings, "seconds": 60.0, "status": "begun"}
    (folder / f"{run.name}.json").write_text(json.dumps(note))


def test_every_listed_run_parses(subtests: pytest.Subtests) -> None:
    for run in LISTED:
        with subtests.test(run.name):
            _understood(run)


def _understood(run: Listed) -> None:
    options = cli._parse(["train", *run.train])
    recipe = find(options.recipe, ALL)
    config = apply(recipe.starting_config(options.init), from_arguments(options.rest))
    assert all(getattr(config, name) is not None for name in recipe.requires)
    assert (options.init is not None) >= (recipe.init == "must")
    starts = [word for word in (options.init, getattr(config, "teacher", None)) if word not in (None, MINILM)]
    assert starts == [other.name for other in run.after][: len(starts)], "it starts from what stands further up"


@pytest.mark.slow
@pytest.mark.parametrize("run", FIRST, ids=lambda run: run.entry)
def test_the_listed_runs_have_plans(run: Listed, real_data: Callable[[str], Path], minilm: Path) -> None:
    if run.after:
        pytest.skip("needs the model that it starts from")
    words = [_in(real_data, word) if "$DATA" in word else word for word in run.train]
    words = [str(minilm) if word == MINILM else word for word in words]
    if run.train[0] == "reading":
        pytest.skip("trains several models, whose dry runs are tested separately")
    subprocess.run([sys.executable, "-m", *run.program, *words, "--dry-run"], cwd=ROOT, check=True)


def _in(real_data: Callable[[str], Path], word: str) -> str:
    folder = word.partition("$DATA/")[2].split("/")[0]
    return word.replace("$DATA", str(real_data(folder).parent))


def test_records_match_the_list() -> None:
    """Fail if the settings of a kept run were changed in the list."""
    settings = {run.name: run.settings for run in LISTED}
    for kept in kept_records():
        assert kept["settings"] == settings[kept["run"]]


def test_an_interrupted_list_continues_and_records_once(
    call: Callable[..., int], tmp_path: Path, records: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = entry("bad", LM + "many")
    tuned = entry("tuned", "single-sentence data=$DATA/labeled --init lm training.epochs=1 threads=1", seeds=[1, 2])
    entries = [bad, entry("lm", LM.replace("validate_every=1000", "validate_every=300") + "900"), tuned]

    def interrupt() -> None:
        for _ in range(10**5):
            steps = [int(file.stem[-8:]) for file in (tmp_path / "runs/lm/state").glob("checkpoint-*.json")]
            if max(steps, default=0) >= 200:  # that of 200 may be gone before this is awake
                return os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.002)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert call("--minutes", "20", entries=entries) == 130
    thread.join()
    told = capfd.readouterr().err
    assert "evidence: bad: failed with status 2; the next one" in told
    assert "SIGTERM after step" in told, "the training has written its checkpoint"
    assert call("--list", entries=entries) == 0
    shown = capfd.readouterr().out
    assert " of 900" in shown
    assert "waits for lm" in shown
    assert not records.exists()

    assert call("--minutes", "20", entries=entries) == 0
    told = capfd.readouterr().err
    assert "resuming after step" in told
    assert "3 kept, 1 left" in told
    assert sorted(path.stem for path in records.iterdir()) == ["lm", "tuned-1", "tuned-2"]
    lm, second = (json.loads((records / f"{name}.json").read_text()) for name in ("lm", "tuned-2"))
    assert lm["steps"] == 900
    assert [row["step"] for row in lm["curve"]] == [300, 600, 900]
    assert lm["evidence"]["seconds"] > 0
    assert (second["seed"], second["init"]) == (2, "lm")
    words = "--init lm training.epochs=1 threads=1 training.seed=2"
    assert second["evidence"]["settings"][0] == f"single-sentence 'data=$DATA/labeled' {words}"
    assert second["evidence"]["settings"][1:] == lm["evidence"]["settings"], "and what it started from"
    assert call("--only", "lm", "tuned", entries=entries) == 0
    assert "0 kept, 1 left" in capfd.readouterr().err, "nothing is trained twice"


def test_the_duration_is_recorded_and_other_settings_reported(
    call: Callable[..., int], tmp_path: Path, records: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    assert call("--minutes", "0.02", entries=[entry("lm", LM + "100000000")]) == 0
    assert time.monotonic() - started < GRACE + 60
    assert "0 kept, 1 left" in capfd.readouterr().err
    changed = [entry("lm", LM + "20")]
    assert call(entries=changed) == 0
    assert "left out: lm: started or recorded with other settings: --anew lm" in capfd.readouterr().err
    assert not records.exists()
    assert call("--anew", "lm", entries=changed) == 0
    assert json.loads((records / "lm.json").read_text())["steps"] == 20
    assert call(entries=[entry("lm", LM + "30")]) == 0  # and of what is kept
    assert "other settings" in capfd.readouterr().err
    assert json.loads((records / "lm.json").read_text())["steps"] == 20


def test_a_full_disk_keeps_every_record(
    call: Callable[..., int], tmp_path: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry("lm", LM + "20")]
    [run] = listed(tmp_path, *entries)
    finished(tmp_path / "runs", run)
    records.mkdir(parents=True)
    (records / "lm.json").write_text("{}")  # one from before
    real = files._sync

    def full(path: Path) -> None:
        if path.parent == records:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    monkeypatch.setattr(files, "_sync", full)
    assert call(entries=entries) == 2
    assert [path.name for path in records.iterdir()] == ["lm.json"]
    assert (records / "lm.json").read_text() == "{}"
    monkeypatch.setattr(files, "_sync", real)
    assert call(entries=entries) == 0  # without training: there is no such data
    kept = json.loads((records / "lm.json").read_text())
    assert kept["overrides"] == {"data": "data"}
    assert kept["evidence"] == {"claim": "a", "run": "lm", "settings": run.settings, "seconds": 60.0}


@pytest.mark.parametrize(
    ("name", "recorded"), [("rows", ["rows-A-heads-1", "rows-base"]), ("t-base", ["t-base", "t-base-A-heads-1"])]
)
def test_parts_of_a_run_are_grouped(
    call: Callable[..., int], tmp_path: Path, records: Path, name: str, recorded: list[str]
) -> None:
    entries = [entry(name, "translation/ablate")]
    [run] = listed(tmp_path, *entries)
    for part in ("base", "A-heads-1"):
        finished(tmp_path / "runs" / name, Listed(part, part, "a", "", (), 1, "cpu"))
    note = {"settings": run.settings, "seconds": 1.0, "status": "finished"}
    (tmp_path / "runs" / f"{name}.json").write_text(json.dumps(note))
    assert call(entries=entries) == 0
    assert sorted(path.stem for path in records.iterdir()) == recorded


def test_calls_run_side_by_side(call: Callable[..., int], capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--at-once", "2", entries=[entry("one", "translation data=$DATA/absent")]) == 0
    assert capfd.readouterr().err.count("left out: one") == 2


def test_an_existing_curve_is_kept(call: Callable[..., int], tmp_path: Path, records: Path) -> None:
    entries = [entry("digits", "universal/copy")]
    [run] = listed(tmp_path, *entries)
    finished(tmp_path / "runs", run)
    result = tmp_path / "runs" / "digits" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "curve": {"encoder_steps": {"3": 2.5}}}))
    assert call(entries=entries) == 0
    kept = json.loads((records / "digits.json").read_text())
    assert kept["curve"] == {"encoder_steps": {"3": 2.5}}
    assert kept["evidence"]["run"] == "digits"


def test_gpu_runs_are_ordered_with_their_prerequisites(tmp_path: Path, records: Path) -> None:
    runs = listed(
        tmp_path, entry("small", LM + "1"), entry("teacher", LM + "2"),
        entry("pupil", "cifar10/vit teacher=teacher", device="cuda"), entry("large", LM + "3", device="cuda"),
    )  # fmt: skip
    here = Standing(runs, tmp_path / "runs", tmp_path, "cuda")
    assert [run.name for run in here.listed] == ["teacher", "pupil", "large", "small"]
    (tmp_path / "text.txt").write_text("text")
    assert [here.obstacle(run) for run in here.listed] == [None, "waits for teacher", None, None]
    finished(tmp_path / "runs", runs[1])
    assert here.obstacle(runs[2]) is None
    on_a_core = Standing(runs, tmp_path / "runs", tmp_path, "cpu")
    assert [run.name for run in on_a_core.listed] == [run.name for run in runs]
    assert on_a_core.obstacle(runs[3]) == "needs a GPU: --device cuda"
    without = Standing(runs, tmp_path / "runs", tmp_path / "nothing", "cpu")
    assert without.obstacle(runs[0]) == f"no text.txt in {tmp_path / 'nothing'}"
    assert Standing(runs, tmp_path, None, "cpu").obstacle(runs[0]) == ("needs text.txt: give DATA=FOLDER that has it")


def test_runs_that_start_from_a_changed_run_change_too(tmp_path: Path, records: Path) -> None:
    tuned = entry("tuned", "single-sentence data=$DATA/labeled --init lm")
    runs = listed(tmp_path, entry("lm", LM + "20"), tuned)
    for run in runs:
        finished(tmp_path / "runs", run)
    now = listed(tmp_path, entry("lm", LM + "21"), tuned)
    here = Standing(now, tmp_path / "runs", tmp_path, "cpu")
    assert [here.state(run) for run in now] == ["changed", "changed"]


def test_two_calls_take_different_runs(call: Callable[..., int], tmp_path: Path, records: Path) -> None:
    entries = [entry("one", LM + "20"), entry("two", LM + "20")]
    for run in listed(tmp_path, *entries):
        finished(tmp_path / "runs", run)
    with (tmp_path / "runs" / "one.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert call(entries=entries) == 0
        assert [path.stem for path in records.iterdir()] == ["two"]
        assert call("--anew", "one", entries=entries) == 2


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry("x", "translation", claim="z")], "run 'x': no claim 'z'; there are a, b"),
        ([entry("x", "translation", device="tpu")], "expected cpu or cuda"),
        ([entry("x", "translation", by="keras")], "by is 'keras': expected manyheads or transformers"),
        ([entry("x", "translation", seed=1)], "unknown seed"),
        ([entry("x", "translation", seeds=["1"])], "expected numbers"),
        ([entry("x", "translation", minutes="long")], "minutes is 'long'"),
        ([entry("x", "translation"), entry("x", "translation")], "x is listed twice"),
        (["["], "list.toml"),
    ],
)
def test_a_malformed_list_is_reported_in_one_line(
    call: Callable[..., int], capfd: pytest.CaptureFixture[str], entries: list[str], message: str
) -> None:
    assert call(entries=entries) == 2
    told = capfd.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_a_closed_pipe_while_listing_is_no_error() -> None:
    code = "from lab.evidence import __main__ as evidence; evidence.table = lambda *_: 'x' * 10**6; "
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", f"{code}raise SystemExit(evidence.main(['--list']))"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_damaged_checkpoint_or_missing_run_affects_no_other(
    call: Callable[..., int], tmp_path: Path, records: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    entries = [entry("torn", LM + "10"), entry("gone", LM + "20"), entry("lm", LM + "30")]
    torn, gone, run = listed(tmp_path, *entries)
    (tmp_path / "runs" / "torn" / "state").mkdir(parents=True)
    whole = {"content": {"config": {"steps": 10, "epochs": None, "accumulate": 1}, "batches": 1, "step": 2}}
    (tmp_path / "runs" / "torn" / "state" / "checkpoint-00000002.json").write_text(json.dumps(whole))
    (tmp_path / "runs" / "torn" / "state" / "checkpoint-00000004.json").write_text('{"content": {')
    for other, status in ((torn, "begun"), (gone, "kept")):
        note = {"settings": other.settings, "seconds": 1.0, "status": status}
        (tmp_path / "runs" / f"{other.name}.json").write_text(json.dumps(note))
    finished(tmp_path / "runs", run)
    assert call("--list", entries=entries) == 0
    assert "step 2 of 10" in capfd.readouterr().out
    assert call("--only", "gone", "lm", entries=entries) == 0
    assert "finished without a result.json: --anew gone" in capfd.readouterr().err
    assert [path.stem for path in records.iterdir()] == ["lm"]


def test_forgotten_runs_are_never_mistaken_for_new_ones(
    call: Callable[..., int], tmp_path: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [old] = listed(tmp_path, entry("lm", LM + "20"))
    finished(tmp_path / "runs", old)
    (tmp_path / "runs" / "lm" / "state").mkdir()
    entries = [entry("lm", LM + "30")]

    def killed(folder: Path) -> None:
        raise OSError("killed while removing")

    with monkeypatch.context() as patch:
        patch.setattr(standing.shutil, "rmtree", killed)
        assert call("--anew", "lm", entries=entries) == 2
    assert call(entries=entries) == 0
    assert json.loads((records / "lm.json").read_text())["steps"] == 30
    assert call("--anew", "lm", "--minutes", "0.001", entries=entries) == 0
    assert not list((tmp_path / "runs").glob(".*")), "no temporary files remain"


def test_a_signal_after_the_start_stops_training(
    call: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, popen = list[subprocess.Popen[bytes]](), subprocess.Popen

    def start(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(process := popen(*words, **options))
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr("lab.evidence.session.subprocess.Popen", start)
    other = threading.Event()
    threading.Thread(target=other.wait).start()  # which may take the signal
    try:
        assert call("--minutes", "20", entries=[entry("lm", LM + "100000000")]) == 130
    finally:
        other.set()
    assert started[0].poll() is not None


def test_a_removed_part_has_no_record(call: Callable[..., int], tmp_path: Path, records: Path) -> None:
    entries = [entry("rows", LM + "20")]
    [run] = listed(tmp_path, *entries)
    finished(tmp_path / "runs" / "rows", Listed("one", "", "", "", (), 1, "cpu"))
    (tmp_path / "runs" / "rows.json").write_text(
        json.dumps({"settings": run.settings, "seconds": 1.0, "status": "finished"})
    )
    records.mkdir(parents=True)
    (records / "rows-two.json").write_text(json.dumps({"evidence": {"run": "rows", "settings": ["of before"]}}))
    (records / "lm.json").write_text(json.dumps({"evidence": {"run": "lm", "settings": []}}))
    assert call(entries=entries) == 0
    assert sorted(path.name for path in records.iterdir()) == ["lm.json", "rows-one.json"]
    assert Standing([run], tmp_path / "runs", None, "cpu").state(run) == "kept"


def test_a_missing_gpu_is_reported(call: Callable[..., int], monkeypatch: pytest.MonkeyPatch,
                                         capfd: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    entries = [entry("lm", LM + "20", device="cuda")]
    assert call("--device", "cuda", entries=entries) == 2
    assert "--device cuda: PyTorch finds no GPU here" in capfd.readouterr().err
    assert call("--device", "cuda", "--list", entries=entries) == 0
