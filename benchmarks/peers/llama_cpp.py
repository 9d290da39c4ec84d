"""llama.cpp through llama-cpp-python: a GPT-2 as a GGUF file of 8 bits a weight (q8_0); rows are its sequences."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyheads.export.gguf import write_gguf
from manyheads.models.gpt import GPT

SETTINGS: Mapping[str, str] = {"q8_0": "int8"}

_kept: list[Any] = []  # the library holds no reference to what it calls


def decoder(model: GPT, rows: int, capacity: int, threads: int) -> tuple[Callable[[], None], Callable[[Any], Any]]:
    """Return (reset function, function from tokens (B, T) to logits (B, V)), for `rows` texts of up to `capacity`
    tokens.
    """
    import llama_cpp as llama

    _kept.append(llama.llama_log_callback(lambda level, text, data: None))
    llama.llama_log_set(_kept[-1], None)  # it tells pages of every file that it opens
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.gguf")
        write_gguf(file, model, None, "int8")
        how = llama.llama_model_default_params()
        how.use_mmap = False
        loaded = llama.llama_model_load_from_file(str(file).encode(), how)
    run = llama.llama_context_default_params()
    run.n_ctx, run.n_seq_max, run.n_batch = rows * (-(-capacity // 256) * 256), rows, rows * capacity
    run.n_threads = run.n_threads_batch = threads
    context = llama.llama_init_from_model(loaded, run)
    assert context, "llama.cpp made no context"
    batch = llama.llama_batch_init(rows * capacity, 0, 1)
    vocabulary, at = model.config.vocab, 0

    def forget() -> None:
        nonlocal at
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        at = 0

    def step(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        nonlocal at
        length = tokens.shape[1]
        batch.n_tokens = tokens.size
        for i, token in enumerate(tokens.flatten().tolist()):
            row, place = divmod(i, length)
            batch.token[i], batch.pos[i] = token, at + place
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, row, place == length - 1
        assert llama.llama_decode(context, batch) == 0, "llama.cpp could not decode"
        at += length
        lasts = range(length - 1, tokens.size, length)
        return np.stack(
            [np.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), (vocabulary,)).copy() for i in lasts]
        )

    return forget, step
