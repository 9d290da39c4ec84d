"""The benchmark for a GPU: a part that fails, takes too long or lacks memory loses no other figure."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.ceilings import Ceilings
from benchmarks.gpu import parts
from benchmarks.gpu.part import PARTS
from benchmarks.gpu.session import Session, smaller

RATES = Ceilings(1e9, {"bf16": 1e9, "float32": 1e9})


def entry(engine: str, *figures: float, **more: Any) -> dict[str, Any]:
    return {"work": "train", "case": "32 x 16", "unit": "tokens/s", "engine": engine, "figures": list(figures),
            "error": 0.01, "limit": 100.0, **more}  # fmt: skip


def test_each_engine_of_ours_is_a_row_next_to_all_peers() -> None:
    left_out = {"work": "train", "case": "32 x 16", "engine": "transformers bf16", "left_out": "no time"}
    found = parts.rows([entry("ours bf16", 30, 50, 40), entry("ours bf16 compiled", 60, batch=16), left_out,
                        entry("transformers bf16 compiled", 20)])  # fmt: skip
    assert [(row["case"], row["ours"], row["spread"], row["ratio"], row["share_of_limit"]) for row in found] == [
        ("32 x 16, bf16", 40, [30, 50], 2.0, 0.4), ("32 x 16, bf16 compiled, batch 16", 60, [60, 60], 3.0, 0.6)
    ]  # fmt: skip
    assert found[0]["peers"] == {"transformers bf16 compiled": 20}
    assert found[0]["errors"] == {"ours": 0.01, "transformers bf16 compiled": 0.01}


def test_a_figure_is_written_at_once_or_the_reason_why_there_is_none(tmp_path: Path) -> None:
    session = Session("cpu", True, time.monotonic() + 10, tmp_path / "entries", RATES)

    def fail() -> Any:
        raise ValueError("no such model\nmore")

    def work() -> float:
        time.sleep(0.06)
        return 0.3

    session.attempt({"case": "a"}, "ours", lambda: {"figures": session.figures(work)})
    session.attempt({"case": "b"}, "ours", fail)
    replace(session, tiny=False).attempt({"case": "c"}, "ours", fail, 60)
    found = [json.loads(line) for line in session.out.read_text().splitlines()]
    assert all(1 < figure <= 5 for figure in found[0]["figures"])
    assert found[1]["left_out"] == "ValueError: no such model"
    assert found[2]["left_out"].endswith("about 60 s are needed")


def test_a_batch_that_needs_too_much_memory_is_halved() -> None:
    def measure(size: int) -> dict[str, Any]:
        if size > 8:
            raise torch.OutOfMemoryError
        return {"figures": [size]}

    assert smaller([8, 4], measure) == {"figures": [8]}
    assert smaller([32, 16, 8], measure) == {"figures": [8], "batch": 8}
    with pytest.raises(torch.OutOfMemoryError):
        smaller([32, 16], measure)


def test_a_part_is_cut_at_the_end_of_its_time() -> None:
    entries, ended = parts._run("machine", "cpu", True, 0.2, (1e9, {}))
    assert entries == []
    assert ended["status"] == "cut: its time was over"


def test_the_record_is_kept_after_each_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, given = tmp_path / "gpu.json", dict[str, float]()
    machine = {"measured_flop_per_second": {"bf16": 5e9, "float32": 1e9}, "published_flop_per_second": 9e9,
               "measured_bytes_per_second": 1e9, "published_bytes_per_second": None}  # fmt: skip

    def run(name: str, device: str, tiny: bool, seconds: float, rates: Any) -> Any:
        given[name] = seconds
        if name == "train-gpt2":
            assert rates == (1e9, {"bf16": 9e9, "float32": 1e9})
        if name == "decode-gpt2":
            assert json.loads(out.read_text())["rows"][0]["work"] == "train"
            return [], {"status": "failed with status 1", "seconds": 1.0}
        return [{"machine": machine} if name == "machine" else entry("ours bf16", 1)], {"status": "done", "seconds": 1}

    monkeypatch.setattr(parts, "_run", run)
    record = parts.run_parts(["train-gpt2", "decode-gpt2"], "cpu", tiny=True, minutes=3, out=out)
    assert json.loads(out.read_text()) == record
    assert record["parts"]["decode-gpt2"]["status"] == "failed with status 1"
    assert record["machine"] == machine
    assert list(given) == ["machine", "train-gpt2", "decode-gpt2"]
    assert given["decode-gpt2"] == pytest.approx(180, abs=5)  # the others have left their time to it
    assert {"machine", *record["bench"]} <= set(PARTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["train-gtp2", "--device", "cpu"], "unknown NAME 'train-gtp2': valid are train-gpt2, "),
     (["all", "--device", "cpu", "--repeats", "2"], "--device cannot be combined with --against, --repeats"),
     (["all", "--tiny"], "--tiny and --minutes are options of --device"),
     (["lowered", "--against"], "lowered models are compared with plain PyTorch: leave out --against")],
)  # fmt: skip
def test_options_that_have_no_effect_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", "--device", "cuda"]) == 2
    assert "--device cuda needs a GPU, but PyTorch finds none" in capsys.readouterr().err
