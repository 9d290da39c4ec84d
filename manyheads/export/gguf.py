"""Export of GPT-2 and BERT models to GGUF, the file format of llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer
from torch import Tensor

from manyheads.errors import UserError, extra
from manyheads.export.graphs import Weights
from manyheads.files import JsonObject
from manyheads.interop.bert import BERT
from manyheads.interop.gpt import GPT2
from manyheads.models.bert import Bert
from manyheads.models.gpt import GPT, GPTConfig

if TYPE_CHECKING:
    from gguf import GGUFWriter

_FLAGS = ("lstrip", "rstrip", "single_word")  # flags of added tokens that llama.cpp does not support
# name of a tensor in transformers -> name in llama.cpp. `IN_LAYERS` contains the tensors of each layer.
NAMES = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
IN_LAYERS = {
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip


# number format of the matrices -> name in gguf.GGMLQuantizationType
KINDS: dict[Weights, str] = {"float32": "F32", "float16": "F16", "int8": "Q8_0"}
BLOCK = 32  # number of columns of an 8-bit matrix that share a scale factor


def write_gguf(file: Path, model: GPT, tokenizer: Tokenizer | None, weights: Weights = "float32") -> None:
    """Write a GPT-2 model to a GGUF file.

    tokenizer  byte-level BPE tokenizer. If None, the file has no vocabulary, and llama.cpp accepts only token ids
    weights    number format of the matrices. Vectors and position embeddings are always float32

    Raises UserError for a model or a tokenizer that llama.cpp does not support.
    """
    with extra("export", "export to GGUF"):
        import gguf
    c = model.config
    settings = GPT2.settings_of(c)  # Raises UserError for a model that is not a GPT-2.
    if c.head != "language":
        raise UserError(f"expected a GPT-2 with the head 'language', found the head {c.head!r}")
    if c.activation != "gelu_tanh":
        raise UserError(
            f"llama.cpp computes every GPT-2 with the activation gelu_tanh, found {c.activation}. Train the model with"
            " model.activation=gelu_tanh"
        )
    writer = gguf.GGUFWriter(file, "gpt2")
    writer.add_context_length(c.max_positions)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(settings["n_inner"] or 4 * c.width)
    writer.add_head_count(c.heads)
    writer.add_layer_norm_eps(c.norm_eps)
    writer.add_vocab_size(c.vocab)
    _add_vocabulary(writer, c, tokenizer)
    tensors = {}
    for name, tensor in GPT2.tensors_of(model).items():
        *parts, leaf = name.removeprefix("transformer.").split(".")
        in_layer = parts[0] == "h"
        name = f"blk.{parts[1]}.{IN_LAYERS['.'.join(parts[2:])]}" if in_layer else NAMES[parts[0]]
        tensors[f"{name}.{leaf}"] = tensor.T if in_layer and tensor.ndim == 2 else tensor
    _write(writer, file, tensors, weights)


def write_bert(file: Path, model: Bert, tokenizer: Tokenizer | None, pool: str, weights: Weights = "float32") -> None:
    """Write a BERT model without its head to a GGUF file, for computing vectors of texts in llama.cpp.

    tokenizer  uncased WordPiece tokenizer, because llama.cpp converts every text for a BERT to lower case
    pool       pooling of the token states, "mean" or "first"
    weights    number format of the matrices. Vectors, position and segment embeddings are always float32

    Raises UserError for a model, a tokenizer or a pooling that llama.cpp does not support. llama.cpp computes GELU by
    tanh, so its vectors differ slightly from those of a model with the exact GELU.
    """
    with extra("export", "export to GGUF"):
        import gguf
    c = model.config
    pooling = {"mean": gguf.PoolingType.MEAN, "first": gguf.PoolingType.CLS}
    if pool not in pooling:
        raise UserError(f"expected mean or first pooling for GGUF, found {pool}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, c.layers)
    tensors = {}
    for name, tensor in BERT.tensors_of(model).items():
        known = names.get_name(name.removeprefix("bert."), try_suffixes=(".weight", ".bias"))
        if known is not None and "pooler" not in name and not name.startswith(("cls", "classifier")):
            tensors[known] = tensor
    writer = gguf.GGUFWriter(file, "bert")
    writer.add_context_length(c.max_positions)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(c.feed_forward)
    writer.add_head_count(c.heads)
    writer.add_layer_norm_eps(c.norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling[pool])
    writer.add_token_type_count(c.segment_types or 1)
    _add_word_pieces(writer, tokenizer)
    _write(writer, file, tensors, weights)


def _add_word_pieces(writer: GGUFWriter, tokenizer: Tokenizer | None) -> None:
    """Add a WordPiece vocabulary to a GGUF file.

    In llama.cpp, a mark precedes pieces that begin a word, whereas WordPiece has "##" before pieces that continue one.
    """
    from gguf import TokenType

    content: JsonObject = {"model": {"type": "none"}} if tokenizer is None else json.loads(tokenizer.to_str())
    normalizer, pieces = content.get("normalizer") or {}, content["model"]
    if tokenizer is None or pieces["type"] != "WordPiece" or pieces["continuing_subword_prefix"] != "##":
        raise UserError(f"expected a WordPiece tokenizer with the prefix ##, found {pieces['type']}")
    if normalizer.get("type") != "BertNormalizer" or not normalizer["lowercase"]:
        raise UserError("expected an uncased tokenizer: llama.cpp converts every text for a BERT to lower case")
    special = {token["id"] for token in content["added_tokens"]}
    words = [word for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([
        word if number in special else word.removeprefix("##") if word.startswith("##") else f"\u2581{word}"
        for number, word in enumerate(words)
    ])  # fmt: skip
    writer.add_token_types([TokenType.CONTROL if i in special else TokenType.NORMAL for i in range(len(words))])
    begin, *_, end = tokenizer.encode("").ids
    writer.add_bos_token_id(begin)
    writer.add_eos_token_id(end)
    writer.add_sep_token_id(end)
    for add, name in ((writer.add_unk_token_id, "[UNK]"), (writer.add_pad_token_id, "[PAD]"),
                      (writer.add_mask_token_id, "[MASK]")):  # fmt: skip
        if (number := tokenizer.token_to_id(name)) is not None:
            add(number)


def _write(writer: GGUFWriter, file: Path, tensors: Mapping[str, Tensor], weights: Weights) -> None:
    """Write the tensors and close the file. Raises UserError if a tensor that is read back differs."""
    import gguf

    written = {}
    for name, tensor in tensors.items():
        values = tensor.contiguous().float().numpy()
        matrix = values.ndim == 2 and not name.startswith(("position_embd", "token_types"))
        if matrix and weights == "int8" and values.shape[1] % BLOCK:
            raise UserError(f"int8 in GGUF needs widths that are multiples of {BLOCK}, found {values.shape[1]}")
        kind = gguf.GGMLQuantizationType[KINDS[weights] if matrix else "F32"]
        written[name] = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, written[name], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(file).tensors}
    if wrong := [name for name, values in written.items() if read.get(name) != values.tobytes()]:
        raise UserError(f"{file.name}: {wrong[0]} differs from the model's after writing: check the disk")


def _add_vocabulary(writer: GGUFWriter, config: GPTConfig, tokenizer: Tokenizer | None) -> None:
    from gguf import TokenType

    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
        return
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
    """Return the first property of a byte-level BPE tokenizer that llama.cpp does not support, or None."""
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
