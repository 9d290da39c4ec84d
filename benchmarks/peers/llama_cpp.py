"""llama.cpp through llama-cpp-python: a GPT-2 as a GGUF file of 8 bits a weight (q8_0); rows are its sequences."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyheads.interop.gpt import GPT2
from manyheads.models.gpt import GPT

SETTINGS: Mapping[str, str] = {"q8_0": "int8"}
KINDS: Mapping[str, str] = {"int8": "Q8_0", "float32": "F32"}  # of its tensors, by precision

# names of tensors in transformers -> llama.cpp, and the tensors of every layer
NAMES = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
IN_LAYERS = {
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
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
        write(file, model, KINDS["int8"])
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


def write(file: Path, model: GPT, kind: str, tokenizer: Mapping[str, Any] | None = None) -> None:
    """`tokenizer` is what a tokenizer.json of byte-level BPE holds; None: the file knows ids alone."""
    import gguf

    c = model.config
    stored = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(file, "gpt2")
    writer.add_context_length(c.max_positions)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(4 * c.width if c.feed_forward is None else c.feed_forward)
    writer.add_head_count(c.heads)
    writer.add_layer_norm_eps(c.norm_eps)
    writer.add_vocab_size(c.vocab)
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        assert c.end is not None, "it has no end of text"
        added = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
        words = {**{number: word for word, number in tokenizer["model"]["vocab"].items()}, **added}
        kinds = gguf.TokenType.NORMAL, gguf.TokenType.USER_DEFINED
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([words[number] for number in range(c.vocab)])
        writer.add_token_types([kinds[number in added] for number in range(c.vocab)])
        writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
        writer.add_bos_token_id(c.end)
        writer.add_eos_token_id(c.end)
    for name, tensor in GPT2.tensors_of(model).items():
        *parts, leaf = name.removeprefix("transformer.").split(".")
        if parts[0] == "h":
            named = f"blk.{parts[1]}.{IN_LAYERS['.'.join(parts[2:])]}.{leaf}"
        else:
            named = f"{NAMES[parts[0]]}.{leaf}"
        matrix = tensor.ndim == 2 and parts[0] != "wpe"
        values = (tensor.T if matrix and parts[0] == "h" else tensor).contiguous().float().numpy()
        if matrix:
            writer.add_tensor(named, gguf.quants.quantize(values, stored), raw_dtype=stored)
        else:
            writer.add_tensor(named, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
