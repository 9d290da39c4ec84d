"""Keys of config.json that many models of `transformers` have: sizes, the activation, and keys without an effect."""

from __future__ import annotations

from collections.abc import Sequence

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.table import Choice, Setting, SettingRow

_BOOKKEEPING = """
    _attn_implementation_autoset _name_or_path _num_labels architectures chunk_size_feed_forward dtype finetuning_task
    gradient_checkpointing id2label initializer_range label2id model_type name_or_path num_labels output_attentions
    output_hidden_states return_dict task_specific_params torch_dtype torchscript transformers_version
"""
# keys with options for text generation, token ids, and keys of the library sentence-transformers for rerankers
_GENERATING = """
    bad_words_ids begin_suppress_tokens bos_token_id cls_token_id cross_attention_hidden_size diversity_penalty
    do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id
    forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_scores prefix remove_invalid_values repetition_penalty return_dict_in_generate
    sbert_ce_default_activation_function sentence_transformers sep_token_id suppress_tokens temperature
    tf_legacy_loss tokenizer_class top_k top_p typical_p unk_token_id use_bfloat16 use_cache
"""
ANY_MODEL = frozenset(_BOOKKEEPING.split())
ANY_TEXT_MODEL = ANY_MODEL | set(_GENERATING.split())

# Keys that most encoders share. Their defaults are the values of the models of size "base".
WIDTH = Setting("width", "hidden_size", default=768)
SIZES: tuple[SettingRow, ...] = (
    WIDTH,
    Setting("layers", "num_hidden_layers", default=12),
    Setting("heads", "num_attention_heads", default=12),
)
FEED_FORWARD = Setting("feed_forward", "intermediate_size", default=3072)


# Keys that any config.json may contain, each with its only supported value. They are not written.
ABSENT: JsonObject = {"is_encoder_decoder": False, "tie_encoder_decoder": False, "pruned_heads": {}}


def architecture(settings: JsonMapping, known: Sequence[str]) -> str:
    """Return the name of the architecture in config.json (key `architectures`). If it has none, return `known[0]`.

    Raises UserError for an architecture that is not in `known`.
    """
    named = settings.get("architectures") or [known[0]]
    if not (isinstance(named, list) and len(named) == 1 and named[0] in known):
        raise UserError(f"'architectures' is {named!r}; expected one of {', '.join(known)}")
    return named[0]


def activation(key: str, default: str = "gelu", tanh: str = "gelu_pytorch_tanh") -> Choice:
    """Return the row of the conversion table for the activation function of the feed-forward networks.

    default  value that applies if the key is missing, as written in the file
    tanh     name to write for the tanh approximation of GELU, which has several names
    """
    return Choice(
        "activation",
        (key,),
        {
            "gelu": [("gelu",), ("gelu_python",)],
            "gelu_tanh": [(tanh,), ("gelu_pytorch_tanh",), ("gelu_new",), ("gelu_fast",)],
            "relu": [("relu",)],
            "silu": [("silu",), ("swish",)],
            "quick_gelu": [("quick_gelu",)],
        },
        default=(default,),
    )
