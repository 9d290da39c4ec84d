"""Threads that run kernels side by side, instead of one kernel together."""

from __future__ import annotations

import importlib.util
import threading
import time
from typing import Any

import pytest
import torch

from manyheads.core.runtime import prepare
from manyheads.inference import CompiledModel, compile_model
from manyheads.models.presets import build, preset
from manyheads.tasks.translation import decoding
from manyheads.tasks.translation.ensemble import Ensemble

if importlib.util.find_spec("numba") is None:
    pytest.skip("the kernels are compiled by Numba (extra `fast`)", allow_module_level=True)

from manyheads.inference.kernels import packed

SOURCES = [[3, 4, 5, 1], [6, 1], [], *([number % 20 + 3, 4, 1] for number in range(9))]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANYHEADS_ROUTE", "kernels")
    torch.manual_seed(0)


@pytest.mark.parametrize("beam", [1, 3])
def test_workers_decode_the_same(beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(preset("transformer/tiny", source_vocab=40, target_vocab=40, end=1, start=0, pad=0)).eval()
    fast = compile_model(model, prepare("float32", 2, device="cpu"))
    together = decoding.decode(fast, SOURCES, beam=beam)
    seen: list[int] = []
    work = packed.Team.work

    def counted(team: packed.Team, function: Any, workers: int) -> None:
        seen.append(workers)
        work(team, function, workers)

    monkeypatch.setattr(packed.Team, "work", counted)
    monkeypatch.setattr(decoding, "WORKER_ROWS", 4)
    assert decoding.decode(fast, SOURCES, beam=beam) == together
    assert seen == [2]
    assert decoding.decode(fast, SOURCES[:1], beam=beam) == together[:1]
    assert seen == [2]  # too few rows for two workers


def test_workers_decode_for_an_ensemble_if_all_models_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(preset("transformer/tiny", source_vocab=40, target_vocab=40, end=1, start=0, pad=0)).eval()
    fast = compile_model(model, prepare("float32", 2, device="cpu"))
    seen: list[int] = []
    work = packed.Team.work

    def counted(team: packed.Team, function: Any, workers: int) -> None:
        seen.append(workers)
        work(team, function, workers)

    monkeypatch.setattr(packed.Team, "work", counted)
    monkeypatch.setattr(decoding, "WORKER_ROWS", 4)
    alone = [[h.tokens for h in ranked] for ranked in decoding.decode(fast, SOURCES)]
    for others, workers in ((fast, [2]), (CompiledModel(model, prepare("float32", 2, device="cpu")), [])):
        seen.clear()
        ranked = decoding.decode(Ensemble([fast, others]), SOURCES)
        assert [[h.tokens for h in hypotheses] for hypotheses in ranked] == alone
        assert seen == workers


def test_a_model_without_kernels_has_no_workers() -> None:
    model = CompiledModel(torch.nn.Linear(2, 2), prepare())
    assert model.map_parts(lambda rows: [row + 1 for row in rows], [1, 2, 3], 1) == [2, 3, 4]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failing_worker_stops_the_others(failing: int) -> None:
    team, started = packed.get_team(2), threading.Event()

    def kernel(*_: Any) -> None:
        started.set()
        time.sleep(0.001)

    def endless(worker: int, workers: int) -> None:
        if worker == failing:
            started.wait(10)
            raise ValueError("fails")
        for _ in range(10_000):
            team.run(kernel, 2)
        pytest.fail("the worker was not stopped")

    with pytest.raises(ValueError, match="fails"):
        team.work(endless, 2)
    assert team.threads == 2
