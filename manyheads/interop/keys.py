"""Keys that the configurations of `transformers` share: the activation, and what no forward pass reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyheads.errors import UserError
from manyheads.interop.table import Choice, Setting, SettingRow

_BOOKKEEPING = """
    _attn_implementation_autoset _name_or_path _num_labels architectures chunk_size_feed_forward dtype finetuning_task
    gradient_checkpointing id2label initializer_range label2id model_type name_or_path num_labels output_attentions
    output_hidden_states return_dict task_specific_params torch_dtype torchscript transformers_version
"""
# how to generate, and which ids the tokenizer has given to what
_GENERATING = """
    bad_words_ids begin_suppress_tokens bos_token_id cls_token_id cross_attention_hidden_size diversity_penalty
    do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id
    forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_scores prefix remove_invalid_values repetition_penalty return_dict_in_generate
    sep_token_id suppress_tokens temperature tf_legacy_loss tokenizer_class top_k top_p typical_p unk_token_id
    use_bfloat16 use_cache
"""
ANY_MODEL = frozenset(_BOOKKEEPING.split())
ANY_TEXT_MODEL = ANY_MODEL | set(_GENERATING.split())

# their names for what most encoders have, and the values of the base sizes
WIDTH = Setting("width", "hidden_size", default=768)
SIZES: tuple[SettingRow, ...] = (
    WIDTH,
    Setting("layers", "num_hidden_layers", default=12),
    Setting("heads", "num_attention_heads", default=12),
)
FEED_FORWARD = Setting("feed_forward", "intermediate_size", default=3072)


# what all of them may say and none of ours has: may be missing, and is not written
ABSENT: dict[str, Any] = {"is_encoder_decoder": False, "tie_encoder_decoder": False, "pruned_heads": {}}


def architecture(settings: Mapping[str, Any], known: Sequence[str]) -> str:
    """The one that `architectures` names; where it names none, the first that is known."""
    named = settings.get("architectures") or [known[0]]
    if not (isinstance(named, list) and len(named) == 1 and named[0] in known):
        raise UserError(f"'architectures' is {named!r}: known are {', '.join(known)}")
    return named[0]


def activation(key: str, default: str = "gelu", tanh: str = "gelu_pytorch_tanh") -> Choice:
    """The activation of the feed-forward networks.

    default  their word for the one that is meant where the key is missing
    tanh     the word to write for GELU by its approximation through tanh: they have several
    """
    return Choice(
        "activation",
        (key,),
        {
            "gelu": [("gelu",), ("gelu_python",)],
            "gelu_tanh": [(tanh,), ("gelu_pytorch_tanh",), ("gelu_new",), ("gelu_fast",)],
            "relu": [("relu",)],
            "silu": [("silu",), ("swish",)],
        },
        default=(default,),
    )
