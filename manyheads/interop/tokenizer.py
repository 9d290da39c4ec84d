"""The tokenizers of a model directory, and what tokenizer_config.json tells other tools of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from manyheads.interop.vocabularies import foreign_tokenizers, marian_files

# of the source, or of both; and of the target, beside a model type of our own with two vocabularies
TOKENIZERS = ("tokenizer.json", "target_tokenizer.json")
TOKENIZER_CONFIG = "tokenizer_config.json"
MASKS = ("[MASK]", "<mask>")  # BERT's word for a word to be predicted, and RoBERTa's


class Tokenizers(NamedTuple):
    """Both are the same object where the vocabulary is joint, and None where a directory has none.

    vocabulary  the files that make them where no tokenizer.json can
    """

    source: Tokenizer | None
    target: Tokenizer | None
    vocabulary: dict[str, bytes]


def vocabulary_sizes(config: Any) -> tuple[int, int]:
    """Of source and target: what the ids of their tokenizers must stay below. 0 for a model that reads no text."""
    size = getattr(config, "vocab", 0)
    return getattr(config, "source_vocab", size), getattr(config, "target_vocab", size)


def tokenizer_config(config: Any, tokenizer: Tokenizer) -> dict[str, Any]:
    """For AutoTokenizer. The special tokens around a text are added by the post-processor in tokenizer.json."""

    def token(name: str) -> str | None:
        index = getattr(config, name, None)
        return None if index is None else tokenizer.id_to_token(index)

    around = tokenizer.encode("").tokens
    starts_with_end = not hasattr(config, "start")  # a decoder alone begins a text with the token that ends one
    special = {
        "pad_token": token("pad"),
        "bos_token": token("end") if starts_with_end else None,
        "eos_token": token("end"),
        "unk_token": getattr(tokenizer.model, "unk_token", None),
        "cls_token": around[0] if len(around) == 2 else None,
        "sep_token": around[1] if len(around) == 2 else None,
        "mask_token": next((mask for mask in MASKS if tokenizer.token_to_id(mask) is not None), None),
    }
    # where nothing is said, AutoTokenizer makes token types, which most models do not take
    segments = ["token_type_ids"] * ((getattr(config, "segment_types", None) or 1) > 1)
    most = getattr(config, "max_positions", None)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: text for name, text in special.items() if text is not None},
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        **({} if most is None else {"model_max_length": most}),
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": tokenizer.encode_special_tokens,  # "</s>" in a text is text
    }


def read_tokenizers(
    path: Path, model_type: str, names: list[str], about: Mapping[str, Any] | None, tokenizer_class: Any,
    sizes: tuple[int, int],
) -> Tokenizers:  # fmt: skip
    """The tokenizers of a directory.

    names            of their files; a directory of another tool may have other files instead
    about            its tokenizer_config.json, None where there is none
    tokenizer_class  what config.json says of them
    sizes            of the model's vocabularies

    Raises ValueError, in one line, on files that are missing or damaged, or of another model.
    """
    settings = {"tokenizer_class": tokenizer_class, **(about or {})}
    foreign = None
    # where both lie there, transformers reads SentencePiece's files for this class, and tokenizer.json for all others
    present = (path / TOKENIZERS[0]).is_file()
    if not present or settings["tokenizer_class"] == "MarianTokenizer":
        foreign = foreign_tokenizers(path, model_type, settings)
        if foreign is None and not present and about is None and names == [TOKENIZERS[0]]:
            return Tokenizers(None, None, {})
    tokenizers = list(foreign) if foreign else [_from_file(path / name) for name in names]
    for tokenizer, size in zip(tokenizers, sizes, strict=False):
        largest = max(tokenizer.get_vocab().values(), default=-1)
        if largest >= size:
            raise ValueError(
                f"{path}: its tokenizer has tokens up to id {largest}, the model {size} in all: they do not belong"
                " together"
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    if not tokenizers:
        return Tokenizers(None, None, {})
    return Tokenizers(tokenizers[0], tokenizers[-1], marian_files(path) if foreign and model_type == "marian" else {})


def _from_file(file: Path) -> Tokenizer:
    if not file.is_file():
        raise ValueError(f"{file.parent}: no {file.name}: the directory is incomplete, copy or save the model again")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{file}: not a tokenizer ({str(error).splitlines()[0]})") from None
