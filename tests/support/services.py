"""Tiny models of several kinds, and a service for them: in a separate process or in this one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import torch

from manyheads import directory
from manyheads.data.images.object_preprocessing import ObjectPreprocessing
from manyheads.data.images.palette import Palette
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.text.tokenizers import END_OF_TEXT, train_bpe, train_byte_bpe, train_wordpiece
from manyheads.models.presets import build, preset
from manyheads.service.app import application
from manyheads.service.state import Service

Ask = Callable[..., Any]  # of fields: the response, to be awaited
CORPUS = ["the cat sat on the mat, the dog sat on the cat and the mat — naïve café! " * 4]


def drawn(name: str, noise: float = 0.4, **settings: Any) -> Any:
    torch.manual_seed(0)
    model = build(preset(name, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    return model


def language_model(path: Path, **settings: Any) -> Path:
    tokenizer = train_byte_bpe(CORPUS, 288)
    end = tokenizer.token_to_id(END_OF_TEXT)
    sizes = {"vocab": tokenizer.get_vocab_size(), "end": end, "width": 16, "layers": 2, "heads": 2}
    directory.save(path, drawn("gpt2/nano", 0.5, **{**sizes, "max_positions": 128, **settings}), tokenizer)
    return path


def detector(path: Path, **settings: Any) -> Path:
    """Write a detector of dots and lines in gray images of 128 x 128 pixels."""
    sizes = {"labels": ("dot", "line"), "widths": (16, 16, 16), "stem_width": 16, "width": 16, "queries": 9}
    prepared = ObjectPreprocessing(128, 128, (0.5,), (0.5,), 1).as_dict()
    directory.save(path, drawn("detr/digits", 0.02, **{**sizes, **settings}), preprocessing=prepared)
    return path


def image_writer(path: Path, **settings: Any) -> Path:
    """Write an iGPT of 5 gray levels and images of 4 x 4 pixels."""
    colors = np.linspace(-1, 1, 5, dtype=np.float32)[:, None].repeat(3, 1)
    palette = Palette(colors, Preprocessing(4, resample="bilinear", squash=True))
    sizes = {"vocab": 6, "width": 16, "layers": 2, "heads": 2, "max_positions": 16}
    directory.save(path, drawn("igpt/s", **{**sizes, **settings}), preprocessing=palette.as_dict())
    return path


def translator(path: Path, source: str = "en", target: str = "de") -> Path:
    tokenizer = train_bpe(CORPUS, 48)
    size, end, pad = tokenizer.get_vocab_size(), tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<pad>")
    sizes = {"source_vocab": size, "target_vocab": size, "pad": pad, "end": end, "start": pad, "source_pad": pad}
    model = drawn("transformer/tiny", 0.02, **sizes, width=32, max_positions=64)
    with torch.no_grad():
        model.source_embedding.weight[pad] = 0.0
    directory.save(path, model, tokenizer)
    record = {"data": {"source": source, "target": target}}
    (path / "result.json").write_text(json.dumps(record))
    return path


def bert(path: Path, **settings: Any) -> Path:
    tokenizer = train_wordpiece(CORPUS, 54)
    sizes = {"vocab": tokenizer.get_vocab_size(), "width": 16, "layers": 2, "heads": 2, "max_positions": 32}
    directory.save(path, drawn("bert/tiny", **{**sizes, **settings}), tokenizer)
    return path


@dataclass
class Running:
    """A service that answers at `url`."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def megabytes(self) -> float:
        """Return the memory of the process in MiB from /proc, without mapped files, whose pages vary."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return round(sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "VmSwap"))) / 1024, 1)

    def until(self, event: str) -> None:
        """Wait for a line of the log."""
        for _ in range(600):
            if any(line["event"] == event for line in self.lines()):
                return
            time.sleep(0.1)
        raise AssertionError(f"no {event!r} in {self.log.read_text()}")


@contextmanager
def serving(
    log: Path, *arguments: str | Path, python: Sequence[str] = (sys.executable,), **environment: str
) -> Iterator[Running]:
    """`manyheads serve` with these arguments, on a free port."""
    command = [*python, "-m", "manyheads", "serve", *map(str, arguments), "--port", "0", "--threads", "1"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, stdout=file, env={**os.environ, **environment})
    try:
        for _ in range(2400):
            if found := re.search(r"^serving .* on (http://\S+)$", log.read_text(), re.MULTILINE):
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        else:
            raise AssertionError(log.read_text())
        yield Running(found[1], process, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def client(running: Running, **more: Any) -> httpx2.Client:
    return httpx2.Client(base_url=running.url, timeout=120, **more)


def asked_of(service: Service, scene: Callable[[Ask], Any], path: str = "/classify") -> Any:
    """Run a scene with an ASGI client of a path of the service in this process, stop the service, and return the
    scene's result.
    """

    async def play() -> Any:
        transport = httpx2.ASGITransport(application(service))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http:
            return await scene(lambda **body: http.post(path, json=body))

    try:
        return asyncio.run(play())
    finally:
        service.image_queue.close()
        service.registry.close()
        service.attention_queue.close()


def run_directory(path: Path) -> Path:
    """Of a run that is being trained: no model yet."""
    (path / "state").mkdir(parents=True)
    measured(path, *({"step": step, "loss": 5 / step, "learning_rate": 0.1} for step in (1, 2, 3)))
    return path


def measured(path: Path, *entries: dict[str, Any]) -> None:
    with (path / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries))
