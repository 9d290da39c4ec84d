"""Export of GPT-2 models to GGUF, the file format of llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from manyheads.errors import UserError, extra
from manyheads.files import JsonObject
from manyheads.interop.gpt import GPT2
from manyheads.models.gpt import GPT

_FLAGS = ("lstrip", "rstrip", "single_word")  # of added tokens
# names of tensors in transformers -> llama.cpp, and the tensors of every layer
NAMES = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
IN_LAYERS = {
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip


def write_gguf(file: Path, model: GPT, tokenizer: Tokenizer | None, kind: str = "F32") -> None:
    """Write a GPT-2 to a GGUF file.

    tokenizer  a byte-level BPE tokenizer. None writes a file without a vocabulary, for which llama.cpp takes token ids
    kind       number format of the matrices, as `gguf.GGMLQuantizationType` names it. Vectors and position embeddings
               are always float32

    Raises UserError for a model or a tokenizer that llama.cpp does not support.
    """
    with extra("export", "export to GGUF"):
        import gguf
    c = model.config
    settings = GPT2.settings_of(c)  # raises UserError for a model that is no GPT-2
    if c.head != "language":
        raise UserError(f"expected a GPT-2 with the head 'language', found the head {c.head!r}")
    if c.activation != "gelu_tanh":
        raise UserError(
            f"llama.cpp computes every GPT-2 with the activation gelu_tanh, found {c.activation}. Train the model with"
            " model.activation=gelu_tanh"
        )
    stored = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(file, "gpt2")
    writer.add_context_length(c.max_positions)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(settings["n_inner"] or 4 * c.width)
    writer.add_head_count(c.heads)
    writer.add_layer_norm_eps(c.norm_eps)
    writer.add_vocab_size(c.vocab)
    _add_vocabulary(writer, c, tokenizer)
    written = {}
    for name, tensor in GPT2.tensors_of(model).items():
        *parts, leaf = name.removeprefix("transformer.").split(".")
        in_layer = parts[0] == "h"
        name = f"blk.{parts[1]}.{IN_LAYERS['.'.join(parts[2:])]}" if in_layer else NAMES[parts[0]]
        matrix = tensor.ndim == 2 and parts[0] != "wpe"
        values = (tensor.T if matrix and in_layer else tensor).contiguous().float().numpy()
        tensor_kind = stored if matrix else gguf.GGMLQuantizationType.F32
        written[f"{name}.{leaf}"] = gguf.quants.quantize(values, tensor_kind)
        writer.add_tensor(f"{name}.{leaf}", written[f"{name}.{leaf}"], raw_dtype=tensor_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(file).tensors}
    if wrong := [name for name, values in written.items() if read.get(name) != values.tobytes()]:
        raise UserError(f"{file.name}: {wrong[0]} differs from the model's after writing: check the disk")


def _add_vocabulary(writer: Any, config: Any, tokenizer: Tokenizer | None) -> None:
    from gguf import TokenType

    if tokenizer is None:
        return writer.add_tokenizer_model("no_vocab")
    content = json.loads(tokenizer.to_str())
    kind, end = content["model"]["type"], config.end
    byte_level = (content["pre_tokenizer"] or {}).get("type") == "ByteLevel"
    if kind != "BPE" or not byte_level or end is None:
        raise UserError(f"expected a byte-level BPE tokenizer with an end-of-text token, found {kind}")
    if obstacle := _obstacle(content, tokenizer):
        raise UserError(f"llama.cpp splits texts as GPT-2 does, without {obstacle}, which this tokenizer has")
    added = {token["id"]: token["content"] for token in content["added_tokens"]}
    words = {number: word for word, number in content["model"]["vocab"].items()} | added
    rows = range(config.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([words.get(number, f"[unused {number}]") for number in rows])
    writer.add_token_types([
        TokenType.CONTROL if number == end else TokenType.USER_DEFINED if number in added
        else TokenType.NORMAL if number in words else TokenType.UNUSED for number in rows
    ])  # fmt: skip
    merges = content["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)


def _obstacle(content: JsonObject, tokenizer: Tokenizer) -> str | None:
    """Return the first property of a byte-level BPE that llama.cpp's pre-tokenizer "gpt-2" lacks."""
    pre, model, normalizer = content["pre_tokenizer"], content["model"], content["normalizer"]
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "byte_fallback")
    flags = {f"{flag} of {token['content']}": token[flag] for token in content["added_tokens"] for flag in _FLAGS}
    found = {
        f"the normalizer {(normalizer or {}).get('type')}": normalizer,
        "add_prefix_space=True": pre["add_prefix_space"],
        "use_regex=False": not pre.get("use_regex", True), **{name: model.get(name) for name in options}, **flags,
        "tokens around a text": tokenizer.num_special_tokens_to_add(False),
    }  # fmt: skip
    return next((name for name, value in found.items() if value), None)
