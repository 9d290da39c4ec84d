"""Read and write GPT-2, GPT and iGPT in the format of `transformers` (types `gpt2`, `openai-gpt` and `imagegpt`).

Configurations that this format cannot represent are saved in the format of Manyheads. Based on transformers 5.23
(modeling_gpt2.py, modeling_openai.py) and the files of openai-community on the Hub. In these files, the query, key and
value projections form one matrix, and matrices are transposed (Conv1D). In models without a head, tensor names lack the
prefix `transformer.`. Manyheads writes a model without biases with zero biases, which is equivalent, and with a key
`bias` in config.json, which other tools preserve. iGPT (modeling_imagegpt.py) has a separate output projection.

Supported heads are the language model and the text classifier. The classifier reads the last token that is not padding.
In transformers, the padding id identifies this token; in Manyheads, the length of the text. A model with any other head
is rejected, because its tensors have unknown names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from manyheads.core.config import Config
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.family import Family
from manyheads.interop.keys import ABSENT, ANY_TEXT_MODEL, activation
from manyheads.interop.labels import TargetRow, label_names, read_labels, read_target
from manyheads.interop.table import Choice, Setting, SettingRow, Settings, Weight, concatenated
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.igpt import IGPT, IGPTConfig

logger = logging.getLogger(__name__)

_PREFIX = "transformer."
_ATTENTION, _LAYER = "decoder.blocks.{}.attention", "h.{}"
_MATRICES = {
    f"{_ATTENTION}.output": "attn.c_proj",
    "decoder.blocks.{}.feed_forward.expand": "mlp.c_fc",
    "decoder.blocks.{}.feed_forward.contract": "mlp.c_proj",
}
_NORMS = {"decoder.blocks.{}.attention_norm": "ln_1", "decoder.blocks.{}.feed_forward_norm": "ln_2"}
_BIASES = [f"{_LAYER}.{part}.bias" for part in ("attn.c_attn", *_MATRICES.values(), *_NORMS.values())]


def _row(ours: str | tuple[str, ...], theirs: str, *also: str, **ways: Callable[..., Any]) -> Weight:
    return Weight(ours, _PREFIX + theirs, (theirs, *also), **ways)


def _weights(tokens: str, positions: str, *tied: str) -> Callable[[Config, Iterable[str]], list[Weight]]:
    matrix: dict[str, Callable[..., Any]] = {"to_theirs": Tensor.t, "to_ours": Tensor.t}
    weights, biases = (tuple(f"{_ATTENTION}.{part}.{leaf}" for part in ("query", "key", "value"))
                       for leaf in ("weight", "bias"))  # fmt: skip
    rows = [
        _row("embedding.weight", f"{tokens}.weight", *tied),
        _row("positions.table", f"{positions}.weight"),
        _row(weights, f"{_LAYER}.attn.c_attn.weight", to_theirs=lambda *qkv: concatenated(*qkv).t(),
             to_ours=lambda whole: whole.t().chunk(3)),
        _row(biases, f"{_LAYER}.attn.c_attn.bias", to_theirs=concatenated,
             to_ours=lambda whole: whole.chunk(3)),
        *(_row(f"{ours}.weight", f"{_LAYER}.{theirs}.weight", **matrix) for ours, theirs in _MATRICES.items()),
        *(_row(f"{ours}.bias", f"{_LAYER}.{theirs}.bias") for ours, theirs in (_MATRICES | _NORMS).items()),
        *(_row(f"{ours}.weight", f"{_LAYER}.{theirs}.weight") for ours, theirs in _NORMS.items()),
        *(_row(f"decoder.norm.{leaf}", f"ln_f.{leaf}") for leaf in ("weight", "bias")),
        Weight("classifier.weight", "score.weight"),
        Weight("output.weight", "lm_head.weight"),
    ]  # fmt: skip
    return lambda config, names: rows


def _masks(config: GPTConfig | IGPTConfig) -> dict[str, Tensor | None]:
    """Return the names of the causal masks that files of older versions contain."""
    return {
        f"{prefix}h.{layer}.attn.{name}": None
        for prefix in (_PREFIX, "") for layer in range(config.layers) for name in ("bias", "masked_bias")
    }  # fmt: skip


def _computed(config: GPTConfig) -> dict[str, Tensor | None]:
    """Return further tensors that a file may contain: causal masks of older versions, and biases that are zero."""
    tensors = _masks(config)
    if not config.bias:
        hidden = config.feed_forward if isinstance(config.feed_forward, int) else 4 * config.width
        sizes = {"attn.c_attn": 3 * config.width, "mlp.c_fc": hidden}
        names = [name.format(layer) for layer in range(config.layers) for name in _BIASES]
        for name in [*names, *(["ln_f.bias"] if config.norm == "pre" else [])]:
            size = next((size for part, size in sizes.items() if part in name), config.width)
            tensors[_PREFIX + name] = tensors[name] = torch.zeros(size)
    return tensors


_STORED = tuple(_PREFIX + name for name in (*_BIASES, "ln_f.bias"))


def generation(config: GPTConfig) -> JsonObject | None:
    if config.head != "language":
        return None
    return {"bos_token_id": config.end, "eos_token_id": config.end, "pad_token_id": config.end}


def _heads(name: str) -> JsonObject:
    """Return the functions that read and write the head of a GPT or GPT-2 model.

    name  beginning of the architecture names in config.json
    """
    language, sequence = f"{name}LMHeadModel", f"{name}ForSequenceClassification"

    def infer(settings: JsonMapping, tensors: Mapping[str, Tensor]) -> JsonObject:
        if settings.get("architectures") != [sequence]:
            return {}
        labels = read_labels(settings)
        target = read_target(settings, labels)
        return {"head": "sequence", "labels": labels, "target": target, "pad": settings.get("pad_token_id")}

    def also_written(config: GPTConfig) -> JsonObject:
        start = {"bos_token_id": config.end}
        if config.head == "language":
            return start
        return {**start, **label_names(config.labels), "pad_token_id": config.pad}

    def architecture(config: GPTConfig) -> str:
        return language if config.head == "language" else sequence

    return {"infer": infer, "also_written": also_written, "architecture": architecture}


# Keys that do not change the output of the model in transformers: bookkeeping, settings for heads of other tasks,
# details of half precision, and defaults for generation.
_IGNORED = """
    decoder_start_token_id is_decoder n_special output_past pad_token_id predict_special_tokens
    reorder_and_upcast_attn summary_activation summary_first_dropout summary_proj_to_labels summary_type
    summary_use_proj
"""


class _End(Setting):
    """Conversion of the id of the end token.

    In transformers, this id may exceed the vocabulary size; then no text contains the end token.
    """

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        end, size = super().to_ours(theirs)[self.ours], theirs.get("vocab_size")
        if isinstance(end, int) and isinstance(size, int) and end >= size:
            logger.warning(f"{self.theirs!r} is {end}, but the vocabulary has {size} entries; texts have no end token")
            end = None
        return {self.ours: end}


class _Hidden(Setting):
    """Conversion of the number of hidden units in the feed-forward networks."""

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        if isinstance(kind := ours[self.ours], str):
            raise UserError(f"feed_forward is {kind!r}; only dense feed-forward networks can be represented")
        return super().to_theirs(ours)


def _sizes(vocab: int, positions: int, layers: int, width: int, heads: int) -> tuple[Setting, ...]:
    """Return the rows of the settings that GPT-2, GPT and iGPT share, with their defaults in transformers."""
    return (
        Setting("vocab", "vocab_size", default=vocab),
        Setting("width", "n_embd", default=width, also=("hidden_size",)),
        Setting("layers", "n_layer", default=layers, also=("num_hidden_layers",)),
        Setting("heads", "n_head", default=heads, also=("num_attention_heads",)),
        Setting("norm_eps", "layer_norm_epsilon", default=1e-5),
        Setting("max_positions", "n_positions", default=positions, also=("n_ctx", "max_position_embeddings")),
        Setting("dropout", "resid_pdrop", default=0.1),
        Setting("attention_dropout", "attn_pdrop", default=0.1),
        Setting("embedding_dropout", "embd_pdrop", default=0.1),
    )


def _settings(
    positions: int, vocab: int, end: int | None, rows: tuple[SettingRow, ...], ours: JsonObject,
    theirs: JsonObject,
) -> Settings:  # fmt: skip
    common = (
        *_sizes(vocab, positions, 12, 768, 12),
        _End("end", "eos_token_id", default=end, null=True),
        Setting("bias", "bias", default=True),
    )
    ignored = ANY_TEXT_MODEL | set(_IGNORED.split())
    return Settings(
        (*common, *rows, TargetRow()),
        ours_only=ours,
        theirs_only=theirs | {"tie_word_embeddings": True},
        tolerated=ABSENT,
        ignored=ignored,
    )


_PLAIN_ATTENTION: JsonObject = {
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False
}  # fmt: skip
GPT2 = Family(
    "gpt2", GPTConfig, GPT,
    _settings(
        1024, 50257, 50256,
        (
            _Hidden("feed_forward", "n_inner", default=None),
            activation("activation_function", "gelu_new", tanh="gelu_new"),
        ),
        {"norm": "pre", "window": None},
        _PLAIN_ATTENTION,
    ),
    _weights("wte", "wpe", "lm_head.weight"),
    generation=generation, computed=_computed, stored=_STORED, **_heads("GPT2"),
)  # fmt: skip
OPENAI_GPT = Family(
    "openai-gpt", GPTConfig, GPT,
    _settings(
        512, 40478, None,
        # In these files, "gelu" means the tanh approximation of GELU.
        (Choice("activation", ("afn",), {"gelu_tanh": [("gelu",)], "relu": [("relu",)],
                                         "silu": [("silu",), ("swish",)]}, default=("gelu",)),),
        {"norm": "post", "feed_forward": None, "window": None},
        {},
    ),
    _weights("tokens_embed", "positions_embed", "lm_head.weight"),
    generation=generation, computed=_computed, stored=_STORED,
    **_heads("OpenAIGPT"),
)  # fmt: skip


IMAGEGPT = Family(
    "imagegpt", IGPTConfig, IGPT,
    Settings(
        (
            *_sizes(513, 1024, 24, 512, 8),
            Setting("feed_forward", "n_inner", default=None),
            activation("activation_function", "quick_gelu"),
        ),
        ours_only={},
        theirs_only=_PLAIN_ATTENTION | {"tie_word_embeddings": False},
        tolerated=ABSENT,
        ignored=ANY_TEXT_MODEL | set(_IGNORED.split()),
    ),
    _weights("wte", "wpe"), computed=_masks,
    architecture=lambda config: "ImageGPTForCausalImageModeling",
)  # fmt: skip
