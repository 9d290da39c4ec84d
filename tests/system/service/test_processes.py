"""Start, replacement and stop of a service: faulty models, tokens, new versions, several processes, signals."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from libretranslatepy import LibreTranslateAPI

import manyheads
from manyheads import cli
from manyheads.directory import FETCHED
from manyheads.service import openai as completion
from manyheads.service import registry
from manyheads.service.app import application
from manyheads.service.batching import Batcher, FairLock
from manyheads.service.metrics import Metrics
from manyheads.service.registry import Served, stamp_of
from manyheads.service.server import Settings, service_of
from tests.support.services import bert, client, language_model, serving, translator


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["serve", *arguments]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert shown[-1].startswith("manyheads: ")
    return shown[-1]


def test_unservable_models_are_reported_at_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(bert(tmp_path / "m", head="none"))
    assert "no such directory" in refused(capsys, str(tmp_path / "gone"), "--port", "0")
    assert "requires a token" in refused(capsys, model, "--host", "0.0.0.0", "--port", "0")
    for text in (f"={model}", "a="):
        assert "expected NAME=MODEL" in refused(capsys, text, "--port", "0")
    assert "two models have the name m" in refused(capsys, model, model)
    assert "expected a model that classifies single texts" in refused(capsys, model, "--port", "0", "--detect", "m")
    assert "expected one of m" in refused(capsys, model, "--detect", "other")
    assert "NAME=SOURCE:TARGET" in refused(capsys, model, "--languages", "m=en")
    assert "expected a model that translates" in refused(capsys, model, "--port", "0", "--languages", "m=en:de")
    assert "cannot listen on this address" in refused(
        capsys, model, "--host", "192.0.2.1", "--token-file", _token(tmp_path)
    )
    (tmp_path / "short").write_text("abc")
    assert "at least 16" in refused(capsys, model, "--token-file", str(tmp_path / "short"))
    weights = Path(model, "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    assert str(weights.parent) in refused(capsys, model, "--port", "0")
    assert str(weights.parent) in refused(capsys, model, "--port", "0", "--workers", "2")


def _token(folder: Path) -> str:
    (folder / "token").write_text("0123456789abcdef\n")
    return str(folder / "token")


def test_a_token_is_required(tmp_path: Path) -> None:
    model = translator(tmp_path / "en-de")
    token = "0123456789abcdef"
    with serving(tmp_path / "log", model, "--token-file", _token(tmp_path)) as running, client(running) as http:
        assert http.get("/healthz").status_code == 200
        for path in ("/v1/models", "/languages", "/metrics", "/openapi.json"):
            assert http.get(path).status_code == 401
        assert http.get("/v1/models", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert http.post("/translate", json={"q": "a", "source": "en", "target": "de"}).json() == {
            "error": "missing or invalid token"
        }
        openai.OpenAI(base_url=f"{running.url}/v1", api_key=token, max_retries=0).models.retrieve("en-de")
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0).models.list()
        theirs = LibreTranslateAPI(running.url, token)
        assert theirs.languages()[0]["code"] == "en"
        assert theirs.translate("the cat", "en", "de")
        assert token not in running.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_accepted_requests_finish_on_shutdown(tmp_path: Path, workers: int) -> None:
    model = language_model(tmp_path / "lm", max_positions=1024)
    answers: dict[int, tuple[str, str]] = {}

    def ask(http: httpx2.Client, seed: int) -> tuple[str, str]:
        body = {"model": "lm", "prompt": "the", "max_tokens": 800, "seed": seed, "temperature": 0.9}
        (choice,) = http.post("/v1/completions", json=body).raise_for_status().json()["choices"]
        return choice["text"], choice["finish_reason"]

    def written(http: httpx2.Client) -> float:
        counts = re.findall(r"^manyheads_batch_texts_sum\S* (\S+)$", http.get("/metrics").text, re.MULTILINE)
        return sum(map(float, counts))

    with serving(tmp_path / "log", model, "--workers", str(workers)) as running, client(running) as http:
        expected = {seed: ask(http, seed) for seed in range(12)}
        longest = sorted(expected, key=lambda seed: len(expected[seed][0]))[-4:]
        connected = threading.Barrier(len(longest))

        def ask_connected(seed: int) -> None:
            with client(running) as own:
                own.get("/healthz")
                connected.wait(60)
                answers[seed] = ask(own, seed)

        before = written(http)
        threads = [threading.Thread(target=ask_connected, args=(seed,)) for seed in longest]
        for thread in threads:
            thread.start()
        while written(http) < before + 100:  # tokens, of all
            time.sleep(0.01)
        assert len(answers) < len(longest), "all had been answered"
        assert running.stop(signal.SIGTERM) == 0
        for thread in threads:
            thread.join(60)
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{running.url}/healthz")
    assert answers == {seed: expected[seed] for seed in longest}
    assert [line["event"] for line in running.lines() if line["event"] == "stopped"] == ["stopped"] * workers


def test_a_translator_without_languages_explains_how_to_set_them(tmp_path: Path) -> None:
    model = translator(tmp_path / "tr")
    (model / "result.json").unlink()
    with serving(tmp_path / "log", model) as running, client(running) as http:
        found = http.post("/translate", json={"q": "a", "source": "en", "target": "de"})
        assert found.status_code == 400
        assert found.json()["error"].endswith("start the service with --languages tr=SOURCE:TARGET")
    (line,) = [line for line in running.lines() if line["event"] == "unknown languages of a translator"]
    assert line["hint"].endswith("give its languages with --languages tr=SOURCE:TARGET")


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
def test_a_new_model_version_is_served_without_dropped_requests(tmp_path: Path) -> None:
    model = bert(tmp_path / "m", head="sequence", labels=("old", "older"))
    statuses, seen, done = list[int](), set[str](), threading.Event()
    with serving(tmp_path / "log", model) as running:

        def ask() -> None:
            with client(running) as http:
                while not done.is_set():
                    found = http.post("/classify", json={"texts": ["the cat"], "top": 2})
                    statuses.append(found.status_code)
                    seen.update(label["label"] for label in found.json()["results"][0])

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while "old" not in seen:
            time.sleep(0.01)
        for file in bert(tmp_path / "next", head="sequence", labels=("new", "newer")).iterdir():
            shutil.copy(file, model / f"{file.name}.tmp")
            (model / f"{file.name}.tmp").rename(model / file.name)
        running.process.send_signal(signal.SIGHUP)
        running.until("loaded new version")
        (model / "model.safetensors").write_bytes(b"torn")
        running.process.send_signal(signal.SIGHUP)
        running.until("rejected new version")
        time.sleep(0.3)
        done.set()
        for thread in threads:
            thread.join(60)
        with client(running) as http:
            last = http.post("/classify", json={"texts": ["the cat"], "top": 2}).json()
        assert {label["label"] for label in last["results"][0]} == {"new", "newer"}
        assert running.stop() == 0
    assert set(statuses) == {200}
    assert seen == {"old", "older", "new", "newer"}


def test_a_dead_worker_is_restarted_and_counts_cover_all_workers(tmp_path: Path) -> None:
    model = bert(tmp_path / "m", head="none")
    with serving(tmp_path / "log", model, "--workers", "2") as running:

        def processes() -> set[int]:
            return {line["process"] for line in running.lines() if line["event"] == "started"}

        for _ in range(20):
            assert httpx2.get(f"{running.url}/v1/models").status_code == 200
        counts = httpx2.get(f"{running.url}/metrics").text
        assert 'manyheads_requests_total{method="GET",route="/v1/models",status="200"} 20.0' in counts
        first = processes()
        assert len(first) == 2
        os.kill(min(first), signal.SIGKILL)
        running.until("a process died")
        for _ in range(600):
            if len(processes()) == 3:
                break
            time.sleep(0.1)
        assert httpx2.get(f"{running.url}/healthz").status_code == 200
        assert running.stop() == 0


def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    with serving(tmp_path / "log", bert(tmp_path / "m", head="none"), "--workers", "2") as running:
        assert httpx2.get(f"{running.url}/healthz").status_code == 200
        assert running.stop(signal.SIGKILL) == -signal.SIGKILL
        for _ in range(600):
            if [line["event"] for line in running.lines()].count("stopped") == 2:
                break
            time.sleep(0.1)
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{running.url}/healthz")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
def test_sighup_during_startup_stops_no_process(tmp_path: Path) -> None:
    """From the first moment that the parent has children until it says that it serves."""
    model = bert(tmp_path / "m", head="none")
    log, done = tmp_path / "log", threading.Event()

    def hang_up() -> None:
        while not (found := [each for each in _children(os.getpid()) if _is(each, "serve")]):
            time.sleep(0.01)
        (parent,) = found
        while not done.is_set():
            for child in _children(parent):
                if _is(child, "spawn_main"):
                    os.kill(child, signal.SIGHUP)
            time.sleep(0.02)

    if not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():
        pytest.skip("no /proc to find the processes in")
    thread = threading.Thread(target=hang_up)
    thread.start()
    try:
        with serving(log, model, "--workers", "2") as running:
            done.set()
            assert httpx2.get(f"{running.url}/healthz").status_code == 200
            assert running.stop() == 0
    finally:
        done.set()
        thread.join(60)


def _is(process: int, word: str) -> bool:
    return word in Path(f"/proc/{process}/cmdline").read_text()


def _children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


@pytest.mark.parametrize("failing", [False, True])
def test_a_bad_new_version_is_logged_and_the_old_one_stays(
    tmp_path: Path, failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace a model by another kind in the same directory, and raise an unexpected error."""
    model, logged, loads = bert(tmp_path / "m", head="sequence", labels=("a", "b")), list[str](), list[str]()

    def ready(name: str, path: str) -> Served:
        loads.append(path)
        if failing and len(loads) > 1:
            raise RuntimeError("no memory")
        worker = Batcher(name, FairLock(), Metrics(), max_items=8, max_characters=99, max_waiting=8)
        return Served(name, manyheads.load(path), worker, stamp_of(path))

    monkeypatch.setattr(registry.log, "error", lambda _, extra: logged.append(extra["more"]["error"]))
    served = registry.Registry({"m": str(model)}, ready)
    old = served.of("m", "classify")
    shutil.rmtree(model)
    bert(model, head="masked_lm")
    served.reload()
    assert len(loads) == 2
    assert served.of("m", "classify") is old
    expected = (
        "no memory"
        if failing
        else "expected classify embed rerank texts, found fill embed: restart the service to use the new version"
    )
    assert logged == [expected]
    assert isinstance(old.worker, Batcher)
    assert old.worker.submit("a", list, [1], "texts").result(60) == [1]
    served.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have 127.0.0.1 alone")
def test_a_service_binds_to_local_addresses_and_ignores_a_missing_manager(tmp_path: Path) -> None:
    model, gone = bert(tmp_path / "m", head="none"), str(tmp_path / "gone")
    with serving(tmp_path / "log", model, "--host", "127.0.0.2", NOTIFY_SOCKET=gone) as running:
        assert running.url.startswith("http://127.0.0.2:")
        assert httpx2.get(f"{running.url}/v1/models").status_code == 200
        assert httpx2.get(f"{running.url}/v1/models", headers={"Host": "attacker.example"}).status_code == 421
        running.until("cannot reach NOTIFY_SOCKET")


@pytest.mark.parametrize("name", [*FETCHED, "model-00001-of-00002.safetensors"])
def test_every_file_of_a_model_determines_its_version(tmp_path: Path, name: str) -> None:
    model = bert(tmp_path / "m", head="none")
    before = stamp_of(str(model))
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text("{}")
    assert stamp_of(str(model)) != before


def test_a_prompt_in_progress_is_finished_by_its_model_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model(tmp_path / "lm")
    service = service_of(Settings({"lm": str(model)}))
    first, real = service.registry.of("lm", None), completion._encode_prompts

    async def encoded(predictor: Any, asked: Any) -> Any:
        if predictor is first.predictor:
            (model / "tokenizer.json").touch()
            await asyncio.to_thread(service.registry.reload)
            await asyncio.to_thread(first.worker.close)
        return await real(predictor, asked)

    async def ask() -> Any:
        transport = httpx2.ASGITransport(application(service))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.post("/v1/completions", json={"model": "lm", "prompt": "the cat"})

    monkeypatch.setattr(completion, "_encode_prompts", encoded)
    assert asyncio.run(ask()).status_code == 200
    assert service.registry.of("lm", None) is not first
    service.registry.close()
