"""The tokenizers of a model directory, and what tokenizer_config.json tells other tools of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from manyheads.errors import UserError
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


LONGEST_WORD = 1000  # characters of a word that WordPiece still cuts, which takes time by their square; BERT has 100
LARGEST_GROWTH = 1000  # times its length that a normaliser may make a text
_PROBES = ("", "a", " The cat,\n\tit sat ", "\u00e9\u4e00\U0001f389\0", "a" * 40 + "!", " " * 40 + "1" * 40 + ".")


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

    Raises UserError, in one line, on files that are missing or damaged, or of another model.
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
        if fault := fault_of(tokenizer):
            raise UserError(f"{path}: of its tokenizer {fault}: get the model's own files again")
        largest = max(tokenizer.get_vocab().values(), default=-1)
        if largest >= size:
            raise UserError(
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
        raise UserError(f"{file.parent}: no {file.name}: the directory is incomplete, copy or save the model again")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"{file}: not a tokenizer ({str(error).splitlines()[0]})") from None


def fault_of(tokenizer: Tokenizer) -> str | None:
    """What a tokenizer of unknown origin would do to texts: blow them up, take hours, or end the process."""
    grown, longest = 1, getattr(tokenizer.model, "max_input_chars_per_word", 0)
    if longest > LONGEST_WORD:
        return f"the 'max_input_chars_per_word' is {longest:,}: expected at most {LONGEST_WORD:,}"
    for step in _steps(json.loads(tokenizer.normalizer.__getstate__()) if tokenizer.normalizer else None):
        grown *= max(1, len(step.get("content", "")), len(step.get("prepend", "")))
    if grown > LARGEST_GROWTH:
        return f"the normaliser makes texts up to {grown:,} times as long: expected at most {LARGEST_GROWTH:,} times"
    for text in _PROBES:
        try:
            tokenizer.decode(tokenizer.encode(text).ids[: len(text)])
        except (KeyboardInterrupt, SystemExit):
            raise
        except (
            BaseException
        ) as error:  # such as a character that it has no token for; or a panic, which is no Exception
            return f"the text {text[:3]!r}... cannot be read ({str(error)[:100]})"
    return None


def _steps(normalizer: Any) -> Iterator[dict[str, Any]]:
    """A normaliser's parts, those of sequences in sequences too."""
    if isinstance(normalizer, dict):
        yield normalizer
        for inner in normalizer.get("normalizers") or []:
            yield from _steps(inner)
