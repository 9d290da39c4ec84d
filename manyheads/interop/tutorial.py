"""Reader of a `state_dict` of the translation model in the PyTorch tutorial. Models are never written in this format.

The tutorial ("Language Translation with nn.Transformer and torchtext") and blogs based on it define the class
Seq2SeqTransformer. It consists of two embeddings (scaled by sqrt(D), plus positions with interleaved sines and
cosines), of torch.nn.Transformer, and of a linear layer `generator`. A state_dict does not contain all settings. The
missing settings are those of the tutorial: post-norm, ReLU, eight heads, and <unk>, <pad>, <bos>, <eos> as the first
token ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyheads.core.config import FieldError
from manyheads.core.layers import skip_init
from manyheads.core.positions import sinusoidal
from manyheads.errors import UserError, shown
from manyheads.files import parse_json, regular
from manyheads.interop.family import saved_tensors
from manyheads.interop.table import Weight, check_shapes, concatenated, weights_and_biases, weights_to_ours
from manyheads.models.presets import preset
from manyheads.models.transformer import Transformer, TransformerConfig

HEADS = 8
CLASS = "the PyTorch tutorial's Seq2SeqTransformer"
_SOURCE, _TARGET, _OUTPUT = "src_tok_emb.embedding.weight", "tgt_tok_emb.embedding.weight", "generator.weight"
_POSITIONS = "positional_encoding.pos_embedding"
_HIDDEN = {side: f"transformer.{side}.layers.0.linear1.weight" for side in ("encoder", "decoder")}
UNKNOWN, PAD, BEGIN, END = "<unk>", "<pad>", "<bos>", "<eos>"
SPECIAL = {UNKNOWN: 0, PAD: 1, BEGIN: 2, END: 3}
_WRAPPERS = r"(module\.|_orig_mod\.)*"


def _attention(ours: str, theirs: str) -> list[Weight]:
    """Return the rows of the conversion table for an attention layer.

    In the file, one matrix holds the query, key and value projections.
    """
    return [
        *(
            Weight(tuple(f"{ours}.{part}.{leaf}" for part in ("query", "key", "value")), f"{theirs}.in_proj_{leaf}",
                   to_theirs=concatenated, to_ours=lambda t: t.chunk(3))
            for leaf in ("weight", "bias")
        ),
        *weights_and_biases({f"{ours}.output": f"{theirs}.out_proj"}),
    ]  # fmt: skip


def _stack(side: str, *sublayers: str) -> list[Weight]:
    """Return the rows of the conversion table for the encoder or the decoder.

    In the tutorial's model, a layer norm has the same number as the sublayer before it.
    """
    ours, theirs = f"{side}.blocks.{{}}", f"transformer.{side}.layers.{{}}"
    norms = {f"{ours}.{name}_norm": f"{theirs}.norm{number}" for number, name in enumerate(sublayers, 1)}
    others = {f"{ours}.feed_forward.{layer}": f"{theirs}.linear{n}" for n, layer in ((1, "expand"), (2, "contract"))}
    return weights_and_biases({**norms, **others, f"{side}.norm": f"transformer.{side}.norm"})


WEIGHTS = [
    Weight("source_embedding.weight", _SOURCE),
    Weight("target_embedding.weight", _TARGET),
    Weight("output.weight", _OUTPUT),
    Weight("output_bias", "generator.bias"),
    *_stack("encoder", "attention", "feed_forward"),
    *_stack("decoder", "attention", "cross", "feed_forward"),
    *_attention("encoder.blocks.{}.attention", "transformer.encoder.layers.{}.self_attn"),
    *_attention("decoder.blocks.{}.attention", "transformer.decoder.layers.{}.self_attn"),
    *_attention("decoder.blocks.{}.cross", "transformer.decoder.layers.{}.multihead_attn"),
]


def unwrapped(tensors: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], str]:
    """Remove the prefix that DistributedDataParallel or torch.compile has added to all tensor names.

    Return the tensors by their names without the prefix, and the prefix (empty if there is none).
    """
    wrapper = next((re.match(_WRAPPERS, name)[0] for name in tensors), "")  # type: ignore[index]  # matches nothing, too
    if not all(name.startswith(wrapper) for name in tensors):
        return tensors, ""
    return {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}, wrapper


def translator(
    tensors: Mapping[str, Tensor], source: Mapping[str, int] = SPECIAL, target: Mapping[str, int] = SPECIAL, *,
    heads: int = HEADS,
) -> Transformer:  # fmt: skip
    """Build a Transformer with the weights of a state_dict.

    source, target  mapping from words to ids of each language; only the special tokens are used

    Raises UserError with a one-line message if the state_dict comes from another model class.
    """
    config = _config(tensors, source, target, heads)
    with torch.device("meta"), skip_init():
        expected = saved_tensors(Transformer(config))
    table = sinusoidal(config.max_positions, config.width, "interleaved")[:, None]  # (L, 1, D)
    try:
        check_shapes(WEIGHTS, expected, tensors, {_POSITIONS: table})
        ours = weights_to_ours(WEIGHTS, expected, tensors, {_POSITIONS: None})
        # The position vectors in the file were computed in float32. Near position 5,000 they differ from those of
        # Manyheads by about 1e-3.
        if _POSITIONS in tensors and not torch.allclose(tensors[_POSITIONS].double(), table, rtol=0, atol=1e-2):
            raise UserError(f"{_POSITIONS} differs from its sines and cosines")
    except UserError as error:
        raise UserError(f"not a state_dict of {CLASS}: {error}") from None
    with skip_init():
        model = Transformer(config)
    with torch.no_grad():
        for name, tensor in saved_tensors(model).items():
            tensor.copy_(ours[name])
    return model.eval()


def _config(
    tensors: Mapping[str, Tensor], source: Mapping[str, int], target: Mapping[str, int], heads: int
) -> TransformerConfig:
    """Return the configuration of a model, inferred from the shapes of some tensors that are not yet verified."""
    needed = (_SOURCE, _TARGET, _OUTPUT, *_HIDDEN.values())
    if any(name not in tensors or tensors[name].dim() != 2 for name in needed):
        found = shown(tensors) or "nothing"
        raise UserError(f"not a state_dict of {CLASS}: expected {', '.join(needed)}; found {found}")
    rows, width = tensors[_SOURCE].shape
    sizes: dict[str, int] = {"source_vocab": rows, "target_vocab": len(tensors[_TARGET]), "width": width}
    for side, hidden in _HIDDEN.items():
        numbers = [re.match(rf"transformer\.{side}\.layers\.(\d+)\.", name) for name in tensors]
        sizes[f"{side}_layers"] = 1 + max(int(match[1]) for match in numbers if match)
        sizes[f"{side}_feed_forward"] = len(tensors[hidden])
        sizes[f"{side}_heads"] = heads
    if _POSITIONS in tensors:
        sizes["max_positions"] = tensors[_POSITIONS].shape[0] if tensors[_POSITIONS].dim() else 0
    ids = {"pad": target[PAD], "source_pad": source[PAD], "start": target[BEGIN], "end": target[END]}
    try:
        return preset("transformer/blog", **sizes, **ids)
    except FieldError as error:
        if error.field.endswith("_heads"):
            raise UserError(f"heads (--heads) {error.fault}") from None
        raise UserError(f"not a state_dict of {CLASS}: {error}") from None


def read_vocabulary(file: Path) -> dict[str, int]:
    """Read a vocabulary, a mapping from words to ids, from a file.

    The file is JSON or text. JSON contains a list of words (`get_itos()` of torchtext) or a mapping from words to
    ids (`get_stoi()`). Text contains one word per line.

    Raises UserError with a one-line message if ids or special tokens are missing.
    """
    regular(file)
    try:
        text = file.read_text(encoding="utf-8")
        content: Any = parse_json(text) if file.suffix == ".json" else text.removesuffix("\n").split("\n")
    except OSError as error:
        raise UserError(f"{file}: failed to read: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError):
        raise UserError(
            f"{file}: expected {'JSON' if file.suffix == '.json' else 'UTF-8 text, one word per line'}"
        ) from None
    words = {word: i for i, word in enumerate(content)} if isinstance(content, list) and _all(str, content) else content
    numbered = isinstance(words, dict) and _all(int, words.values())
    if not numbered or sorted(words.values()) != list(range(len(content))):
        raise UserError(f"{file}: expected distinct words, as a list in id order or a mapping to 0, 1, 2, ...")
    if missing := [token for token in SPECIAL if token not in words]:
        raise UserError(
            f"{file}: expected the tutorial's special tokens, found no {', '.join(missing)} among {len(words):,} words"
        )
    return words


def _all(kind: type, values: Any) -> bool:
    return all(type(value) is kind for value in values)
