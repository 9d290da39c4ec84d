"""llama.cpp's own server with the weights and words of a GPT-2 of ours, as the peer of bench/serving.py.

It is built from the sources that llama-cpp-python brings:

    pip download --no-binary :all: --no-deps llama-cpp-python && tar xf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B build-llama -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF
    cmake --build build-llama --target llama-server
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from manyheads import directory
from manyheads.export.gguf import write_gguf
from manyheads.export.graphs import Weights
from manyheads.models.gpt import GPT

CONTEXT = 256  # tokens of each client


@contextmanager
def serving(program: Path, model: Path, precision: Weights, clients: int, threads: int) -> Iterator[str]:
    """The address of a server of the GPT in a directory; it takes so many requests at once."""
    loaded = directory.load(model)
    assert isinstance(loaded.model, GPT)
    file = model.parent / "model.gguf"
    write_gguf(file, loaded.model, loaded.tokenizer, precision)
    port = 8391
    command: list[Any] = [
        program, "--model", file, "--port", port, "--parallel", clients, "--ctx-size", clients * CONTEXT,
        "--threads", threads, "--threads-batch", threads,
    ]  # fmt: skip
    with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        url = f"http://127.0.0.1:{port}"
        try:
            while not _healthy(url):
                assert server.poll() is None, f"{program} ended with {server.returncode}"
                time.sleep(0.2)
            yield url
        finally:
            server.terminate()


def _healthy(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health").status_code == 200
    except httpx2.HTTPError:
        return False
