"""Effect of concurrent clients: one client compared with 32, on a service in a separate process.

    python -m benchmarks serving [--seconds 20] [--clients 32] [--threads 2] [--llama-server PROGRAM] [--out FILE.json]

Models are a tiny translator (transformer/tiny, random weights, sentences of about 12 words, beam 4) and the shape of
gpt2/124m (64 tokens each, greedy). Clients send the next request when they have the response. Each ratio is of one
service. llama.cpp's server (benchmarks/llama_server.py) then completes the same texts with the same weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import torch

from benchmarks import llama_server
from benchmarks.output import tell
from manyheads import directory
from manyheads.data.text.tokenizers import END, END_OF_TEXT, PAD, train_bpe, train_byte_bpe
from manyheads.models.presets import build, preset
from manyheads.training.record import hardware

TEXTS = ["the cat sat on the mat and the dog sat on the cat before the rain came down again"] * 9
NEW = 64  # tokens of each completion


def models(folder: Path) -> list[Path]:
    torch.manual_seed(0)
    bpe = train_bpe(TEXTS, 40)
    size, end, pad = bpe.get_vocab_size(), bpe.token_to_id(END), bpe.token_to_id(PAD)
    ids = {"source_vocab": size, "target_vocab": size, "pad": pad, "end": end, "start": pad, "source_pad": pad}
    translator = build(preset("transformer/tiny", **ids))
    directory.save(folder / "tiny", translator, bpe)
    (folder / "tiny" / "result.json").write_text(json.dumps({"data": {"source": "en", "target": "de"}}))
    bytes_bpe = train_byte_bpe(TEXTS, 292)
    gpt = build(preset("gpt2/124m", end=bytes_bpe.token_to_id(END_OF_TEXT)))
    # as many words as the shapes have
    bytes_bpe.add_tokens([f"<{number}>" for number in range(bytes_bpe.get_vocab_size(), gpt.config.vocab)])
    directory.save(folder / "gpt2", gpt, bytes_bpe)
    return [folder / "tiny", folder / "gpt2"]


async def load(url: str, path: str, body: dict[str, Any], clients: int, seconds: float) -> dict[str, float]:
    """Return requests per second, seconds per request, and tokens per second if the service reports tokens."""
    took: list[float] = []
    tokens = 0
    limits = httpx2.Limits(max_connections=clients)
    async with httpx2.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        await http.post(path, json=body)
        began = time.perf_counter()

        async def client() -> None:
            nonlocal tokens
            while time.perf_counter() - began < seconds:
                asked = time.perf_counter()
                response = await http.post(path, json=body)
                response.raise_for_status()
                took.append(time.perf_counter() - asked)
                tokens += response.json().get("usage", {}).get("completion_tokens", 0)

        await asyncio.gather(*(client() for _ in range(clients)))
        whole = time.perf_counter() - began
    took.sort()
    return {
        "requests_per_second": round(len(took) / whole, 2), "tokens_per_second": round(tokens / whole, 1),
        "median_seconds": round(statistics.median(took), 4), "p99_seconds": round(took[int(0.99 * (len(took) - 1))], 4),
        "requests": len(took),
    }  # fmt: skip


COMPLETION = {"model": "gpt2", "prompt": "the cat", "max_tokens": NEW, "temperature": 0, "seed": 1}


async def translating(url: str, clients: int, seconds: float) -> dict[str, Any]:
    sentence = {"q": TEXTS[0][:50], "source": "en", "target": "de"}
    batch = {"q": [TEXTS[0][:50]] * clients, "source": "en", "target": "de"}
    one = await load(url, "/translate", sentence, 1, seconds)
    many = await load(url, "/translate", sentence, clients, seconds)
    whole = await load(url, "/translate", batch, 1, seconds / 2)
    return {
        "one": one, "many": many, "unloaded_batch": whole,
        "throughput_ratio": round(many["requests_per_second"] / one["requests_per_second"], 2),
        "p99_over_batch": round(many["p99_seconds"] / whole["median_seconds"], 2),
    }  # fmt: skip


async def completing(url: str, clients: int, seconds: float, **more: Any) -> dict[str, Any]:
    one = await load(url, "/v1/completions", COMPLETION | more, 1, seconds)
    many = await load(url, "/v1/completions", COMPLETION | more, clients, seconds)
    ratio = round(many["tokens_per_second"] / one["tokens_per_second"], 2)
    return {"one": one, "many": many, "throughput_ratio": ratio}


@contextmanager
def ours(folders: list[Path], precision: str, threads: int) -> Iterator[str]:
    """The address of our service of these directories."""
    command = [sys.executable, "-m", "manyheads", "serve", *map(str, folders), "--port", "0",
               "--threads", str(threads), "--precision", precision, "--log", "warning"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            told = ""
            for line in service.stderr:
                told += line
                if match := re.search(r"on (http://\S+)$", line.strip()):
                    yield match[1]
                    break
            else:
                raise ValueError(told)
        finally:
            service.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--llama-server", type=Path, metavar="PROGRAM")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        folders = models(Path(folder))
        with ours(folders, options.precision, options.threads) as url:
            results["translate"] = asyncio.run(translating(url, options.clients, options.seconds))
            results["complete"] = asyncio.run(completing(url, options.clients, options.seconds))
        if program := options.llama_server:
            with llama_server.serving(program, folders[1], options.precision, options.clients, options.threads) as url:
                results["complete_llama.cpp"] = asyncio.run(
                    completing(url, options.clients, options.seconds, ignore_eos=True)
                )
    tell({"bench": "serving", "clients": options.clients, "precision": options.precision, **results,
          "hardware": {**hardware(), "threads": options.threads}}, options.out)  # fmt: skip


if __name__ == "__main__":
    main()
