"""Benchmarks on tiny models: content of the rows, and equal work on both sides."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    decode_gpt2,
    decode_translation,
    encode_bert,
    encode_vit,
    measure,
    startup,
    table,
    train_translation,
    training,
)
from benchmarks.__main__ import main
from benchmarks.ceilings import Ceilings, ceilings
from benchmarks.decode_gpt2 import Decoding
from benchmarks.decode_translation import Translating
from benchmarks.encode_bert import Encoding
from benchmarks.encode_vit import Seeing
from benchmarks.machine import KINDS, features, kind, today
from benchmarks.ours import REFERENCE, training_precisions
from benchmarks.train_translation import Corpus
from benchmarks.training import Batch
from benchmarks.work import Side, Work
from benchmarks.workers import workers
from manyheads.core.runtime import prepare
from manyheads.inference import CompiledModel
from tests.support import made_up
from tests.support.made_up import MADE_UP

LIMITS = Ceilings(1e10, {"float32": 1e11, "bf16": 2e11, "int8": 4e11})
TINY: dict[str, tuple[Work, Any]] = {
    "decode-gpt2": (decode_gpt2.WORK, Decoding(2, 5, 3, "gpt2/nano")),
    "decode-translation": (decode_translation.WORK, Translating(2, 1, 4, 5, 50, "transformer/tiny")),
    "encode-bert": (encode_bert.WORK, Encoding(6, 3, 9, 2, 2, "bert/tiny")),
    "encode-vit": (encode_vit.WORK, Seeing(2, "vit/7-28")),
    "train-translation": (train_translation.WORK, Corpus(16, 50, 60)),
    "train-gpt2": (training.GPT2, Batch("gpt2/nano", 2, 8)),
    "train-bert": (training.BERT, Batch("bert/tiny", 2, 8)),
    "train-vit": (training.VIT, Batch("vit/7-28", 2)),
}
# a peer that starts in no time, and how near its output must be
NEAR = {"decode-translation": ("ctranslate2", 0.0), "train-translation": ("tutorial", 0.0),
        "train-gpt2": ("transformers", 1e-4), "train-bert": ("transformers", 1e-4),
        "train-vit": ("transformers", 1e-4), "encode-bert": ("transformers", 1e-4),
        "decode-gpt2": ("transformers", 1e-4)}  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_all_sides_of_a_benchmark_agree(name: str) -> None:
    work, case = TINY[name]
    for setting in set(work.ours.settings) - {"float32"}:
        work.ours.prepare(case, setting, 1).run()
    ours = work.ours.prepare(case, "float32", 1)
    ours.run()
    if work.error is not None:
        assert work.error(work.ours.prepare(case, REFERENCE, 1).output, ours.output) <= 1e-5
    assert work.amount(case) / work.least(case, "float32", LIMITS) > 0
    if name in NEAR:
        peer, near = NEAR[name]
        theirs = work.peers[peer].prepare(case, "float32", 1)
        theirs.run()
        assert work.error is not None
        error = work.error(ours.output, theirs.output)
        assert error <= near or error != error  # NaN: nothing is compared


@pytest.mark.parametrize(
    "case",
    [Decoding(2, prompt=8, new=6, preset="gpt2/nano"),
     Translating(3, 1, source=5, target=7, vocabulary=50, preset="transformer/tiny"),
     Translating(3, 4, source=5, target=7, vocabulary=50, preset="transformer/tiny")],
    ids=["gpt2", "greedy", "beam"],
)  # fmt: skip
def test_the_limit_counts_only_products_of_decoding(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = decode_gpt2 if isinstance(case, Decoding) else decode_translation
    monkeypatch.setattr(module, "compiled", lambda model, *_: CompiledModel(model.eval(), prepare("float32", 1)))
    prepared = module.WORK.ours.prepare(case, "float32", 1)
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        prepared.run()
    products_alone = Ceilings(float("inf"), {"float32": 1.0})
    counted = module.WORK.least(case, "float32", products_alone)
    assert 0.9 * counter.get_total_flops() < counted <= counter.get_total_flops()


def test_memory_of_a_side_is_private() -> None:
    sides = {"ours": Side({}, made_up.mark, made_up.marked), "peer": Side({}, made_up.mark)}
    with workers(sides, 1) as started:
        marks = {name: worker.prepare(1.0, "float32") for name, worker in started.items()}
    assert marks == {"ours": "yes", "peer": "no"}


@pytest.mark.filterwarnings("ignore")  # of the conversion
@pytest.mark.slow
def test_openvino_gives_equal_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run OpenVINO in a separate process, as the benchmark does: after its libraries have run, SIGINT would end this
    process.
    """
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("openvino is not installed: pip install 'manyheads[bench]'")
    monkeypatch.setattr("benchmarks.workers.SETTLE", 0.0)
    monkeypatch.setattr("benchmarks.workers.TURN", 0.0)
    with workers({"openvino": Side({}, made_up.openvino)}, 1) as started:
        for name, setting, near in (("decode-gpt2", "int8", 0.1), ("encode-vit", "float32", 1e-4)):
            work, case = TINY[name]
            output = started["openvino"].prepare((name, case), setting)
            assert started["openvino"].seconds(setting) > 0
            assert work.error is not None
            assert work.error(work.ours.prepare(case, REFERENCE, 1).output, output) <= near


def test_llama_cpp_gives_equal_results() -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("gguf")
    work, case = TINY["decode-gpt2"]
    theirs = work.peers["llama.cpp"].prepare(case, "q8_0", 1)
    theirs.run()
    assert work.error is not None
    assert work.error(work.ours.prepare(case, REFERENCE, 1).output, theirs.output) <= 0.1


def test_a_row_describes_its_measurement(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benchmarks.workers.SETTLE", 0.0)
    monkeypatch.setattr("benchmarks.workers.TURN", 0.0)
    measured = measure.measure("made-up", MADE_UP, MADE_UP.peers, 1, repeats=2)
    precise, coarse, fastest = measure.rows("made-up", MADE_UP, measured, LIMITS)
    assert fastest["case"].startswith("a, fastest: ")
    assert list(precise)[:9] == ["work", "case", "unit", "ours", "peers", "ratio", "limit", "share_of_limit", "spread"]
    assert (precise["work"], precise["case"], precise["unit"]) == ("made-up", "a, float32", "things/s")
    assert list(precise["peers"]) == ["openvino float32"]  # coarser ones are no peers of a precise row
    assert list(coarse["peers"]) == ["openvino float32", "openvino int8"]
    for row in (precise, coarse, fastest):
        assert row["ratio"] == pytest.approx(row["ours"] / max(row["peers"].values()))
        assert row["limit"] == 2.0
        assert row["share_of_limit"] == pytest.approx(row["ours"] / row["limit"])
        assert row["spread"][0] <= row["ours"] <= row["spread"][1]
        assert row["repeats"] == 2
        assert row["errors"] == {"ours": 0.0, **dict.fromkeys(row["peers"], 0.0)}
    assert "made-up, a: ctranslate2 int8 is left out: OSError: no such file\n" in capsys.readouterr().err


@pytest.mark.parametrize("died", [made_up.dying, made_up.dying_in_its_turn])
def test_a_dead_peer_is_left_out_and_reported(
    died: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.workers.SETTLE", 0.0)
    monkeypatch.setattr("benchmarks.workers.TURN", 0.0)
    settings = {"float32": "float32", "int8": "int8"}
    peers = {"openvino": MADE_UP.peers["openvino"], "ctranslate2": Side(settings, died)}
    work = replace(MADE_UP, cases={"a": 1.0, "b": 2.0}, peers=peers)
    rows = measure.rows("made-up", work, measure.measure("made-up", work, peers, 1, repeats=2), LIMITS)
    both = ["openvino float32", "openvino int8"]
    assert [list(row["peers"]) for row in rows] == [["openvino float32"], both, both] * 2
    told = capsys.readouterr().err
    for case in work.cases:
        for setting in settings:
            assert f"made-up, {case}: ctranslate2 {setting} is left out: its process ended with status 11\n" in told


@pytest.mark.parametrize("peer", startup.WORK.peers)
def test_the_startup_time_covers_our_imports_only(peer: str) -> None:
    with pytest.raises(ValueError, match="expected a line to translate, got --help"):
        startup.WORK.peers[peer].prepare(startup.WORK.cases["--help"], "", 1)


def test_the_minimum_time_is_best() -> None:
    work = replace(MADE_UP, unit="seconds")
    others = {"slow": (8.0, 0.0), "compiled": (4.0, None)}
    row = measure.row("n", "c", work, ([3.0, 1.0, 2.0], 0.5), others, 1.0)
    assert (row["ratio"], row["share_of_limit"], row["spread"], row["repeats"]) == (0.5, 2.0, [1.0, 3.0], 3)
    assert row["errors"] == {"ours": 0.5, "slow": 0.0, "compiled": None}


def test_only_settings_within_the_bounds_are_the_fastest() -> None:
    def of(ours: float, error: float, peers: dict[str, float]) -> dict[str, Any]:
        errors = {"ours": error, **{peer: 0.1 for peer in peers if "wrong" in peer}}
        return {"ours": ours, "peers": peers, "errors": errors, "ratio": None, "case": "a, x"}

    by_setting = {"float32": of(1.0, 0.0, {"fast": 2.0}), "bf16": of(3.0, 0.005, {"fast": 2.0}),
                  "int8": of(9.0, 0.05, {"fast": 2.0, "wrong": 4.0})}  # fmt: skip
    work = replace(MADE_UP, bounds={"bf16": 0.01, "int8": 0.04})
    row = measure.fastest("a", work, by_setting)
    assert (row["case"], row["ours"], row["peers"], row["ratio"]) == ("a, fastest: bf16", 3.0, {"fast": 2.0}, 1.5)
    assert measure.fastest("", replace(work, bounds={}), by_setting)["ratio"] == 9 / 4


def test_ceilings_are_positive_rates() -> None:
    found = ceilings(1, buffer=2**16, width=64).describe()
    assert found["memory_gb_per_second"] > 0
    rates = found["products_gflop_per_second"]
    assert all(rate > 0 for rate in rates.values())
    assert {*rates} - {"int8"} == {*training_precisions()}


@pytest.mark.parametrize(
    ("line", "of"),
    [("flags\t: fpu avx2 avx512f amx_tile amx_bf16", "amx"), ("flags : avx2 avx512f", "avx512"),
     ("flags : avx2", "avx2"), ("Features : asimd bf16", "arm"), ("model : avx2", "other")],
)  # fmt: skip
def test_a_record_names_the_kind_of_its_machine(line: str, of: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{line}\n")
    found = features(tmp_path / "cpuinfo")
    assert kind(found) == of
    assert ("bf16" in found) == ("asimd" in line)
    assert features(tmp_path / "missing") == []


def test_the_higher_ceiling_counts() -> None:
    assert LIMITS.better(Ceilings(2e10, {"float32": 5e10, "bf16": 3e11, "int8": 4e11})) == Ceilings(
        2e10, {"float32": 1e11, "bf16": 3e11, "int8": 4e11}
    )


def test_the_command_prints_one_document_and_reports_omissions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.workers.SETTLE", 0.0)
    monkeypatch.setattr("benchmarks.workers.TURN", 0.0)
    taken = iter([LIMITS, LIMITS.better(Ceilings(3e10, LIMITS.products))] * 2)
    monkeypatch.setattr("benchmarks.ceilings.ceilings", lambda threads: next(taken))
    monkeypatch.setattr(table, "work", lambda name: MADE_UP)
    monkeypatch.setattr(table, "find_spec", lambda module: None)
    assert main(["startup", "--repeats", "1", "--json"]) == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert document["bench"] == ["startup"]
    assert document["ceilings"]["memory_gb_per_second"] == 30.0  # measured before and after the rows
    cases = [row["case"] for row in document["rows"]]
    assert cases[:2] == ["a, float32", "a, int8"]
    assert cases[2].startswith("a, fastest: ")
    assert document["kind"] in KINDS
    assert document["date"] == today()
    assert all(row["peers"] == {} and row["ratio"] is None for row in document["rows"])
    assert "openvino is left out: openvino not installed: pip install 'manyheads[bench]'\n" in told.err
    assert main(["startup", "--repeats", "1", "--against"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("startup, things/s\n\ncase ")
    assert "openvino" not in told.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode-gtp2"], "unknown NAME 'decode-gtp2': valid are decode-gpt2, decode-translation, "),
        (["startup", "--against", "opnvino"], "unknown PEER 'opnvino': valid are openvino, ctranslate2, "),
        (["startup", "--repeats", "0"], "expected a whole number from 1"),
    ],
)
def test_unknown_names_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
