"""Read and write the tokenizers of a model directory, including tokenizer_config.json for other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from manyheads.core.config import Config
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.vocabularies import foreign_tokenizers, marian_files
from manyheads.models.encoder_decoder import EncoderDecoderConfig

# File names of the tokenizers in a model directory. The second file, for the target language, exists only in Manyheads
# models with two vocabularies. In other models, the first file is for both languages.
TOKENIZERS = ("tokenizer.json", "target_tokenizer.json")
TOKENIZER_CONFIG = "tokenizer_config.json"
MASKS = ("[MASK]", "<mask>")  # the mask tokens of BERT and of RoBERTa


class Tokenizers(NamedTuple):
    """Tokenizers of a model's source and target texts.

    For a joint vocabulary, both are the same object. Both are None if the directory contains no tokenizer.

    vocabulary  contents of the original tokenizer files, if the tokenizer cannot be saved as tokenizer.json
    """

    source: Tokenizer | None
    target: Tokenizer | None
    vocabulary: dict[str, bytes]


def vocabulary_sizes(config: Config) -> tuple[int, int]:
    """Return the sizes of the source and target vocabularies, which limit the token ids.

    A size of 0 means that the model has no text input.
    """
    if isinstance(config, EncoderDecoderConfig):
        return config.source_vocab, config.target_vocab
    return (getattr(config, "vocab", 0),) * 2


# Maximum number of characters in a word for WordPiece, which takes quadratic time in this number. BERT uses 100.
LONGEST_WORD = 1000
LARGEST_GROWTH = 1000  # A normalizer may lengthen a text by at most this factor.
# texts with which a tokenizer from an untrusted file is tested
_PROBES = ("", "a", " The cat,\n\tit sat ", "\u00e9\u4e00\U0001f389\0", "a" * 40 + "!", " " * 40 + "1" * 40 + ".")


def tokenizer_config(config: Config, tokenizer: Tokenizer) -> JsonObject:
    """Return the content of tokenizer_config.json, which the class AutoTokenizer of transformers reads.

    The content does not describe the special tokens around a text, because the post-processor in tokenizer.json adds
    these tokens.
    """

    def token(name: str) -> str | None:
        index = getattr(config, name, None)
        return None if index is None else tokenizer.id_to_token(index)

    around = tokenizer.encode("").tokens
    # A decoder-only model uses the end token as the first token of a text.
    starts_with_end = not isinstance(config, EncoderDecoderConfig)
    special = {
        "pad_token": token("pad"),
        "bos_token": token("end") if starts_with_end else None,
        "eos_token": token("end"),
        "unk_token": getattr(tokenizer.model, "unk_token", None),
        "cls_token": around[0] if len(around) == 2 else None,
        "sep_token": around[1] if len(around) == 2 else None,
        "mask_token": next((mask for mask in MASKS if tokenizer.token_to_id(mask) is not None), None),
    }
    # Without this key, AutoTokenizer would return token types, which most models do not accept.
    segments = ["token_type_ids"] * ((getattr(config, "segment_types", None) or 1) > 1)
    most = getattr(config, "max_positions", None)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: text for name, text in special.items() if text is not None},
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        **({} if most is None else {"model_max_length": most}),
        "clean_up_tokenization_spaces": False,
        # With this setting, the characters "</s>" in a text are read as ordinary text.
        "split_special_tokens": tokenizer.encode_special_tokens,
    }


def read_tokenizers(
    path: Path, model_type: str, names: list[str], about: JsonMapping | None, tokenizer_class: str | None,
    sizes: tuple[int, int],
) -> Tokenizers:  # fmt: skip
    """Read the tokenizers of a model directory.

    names            names of the tokenizer.json files; a directory of another tool may have other files instead
    about            content of tokenizer_config.json; None if it is missing
    tokenizer_class  tokenizer class that config.json names
    sizes            vocabulary sizes of the model, for source and target

    Raises UserError with a one-line message if a file is missing, damaged or from another model.
    """
    if not any(sizes):  # An image model, whose directory may have the tokenizer of a text encoder, as CLIP's.
        return Tokenizers(None, None, {})
    settings = {"tokenizer_class": tokenizer_class, **(about or {})}
    foreign = None
    # If both kinds of files exist, transformers reads the SentencePiece files for this class, and tokenizer.json for
    # all other classes.
    present = (path / TOKENIZERS[0]).is_file()
    if not present or settings["tokenizer_class"] == "MarianTokenizer":
        foreign = foreign_tokenizers(path, model_type, settings)
        if foreign is None and not present and about is None and names == [TOKENIZERS[0]]:
            return Tokenizers(None, None, {})
    tokenizers = list(foreign) if foreign else [_from_file(path / name) for name in names]
    for tokenizer, size in zip(tokenizers, sizes, strict=False):
        # Do not count added tokens: an added token without an embedding is only a problem in a text that contains it.
        largest = max(tokenizer.get_vocab(with_added_tokens=False).values(), default=-1)
        if largest < 0:
            raise UserError(
                f"{path}: the tokenizer has 0 entries, but the model's vocabulary size is {size}; copy or save the "
                "tokenizer again"
            )
        if fault := fault_of(tokenizer):
            raise UserError(f"{path}: invalid tokenizer: {fault}; download the model again")
        if largest >= size:
            raise UserError(
                f"{path}: the tokenizer has token ids up to {largest}, but the model's vocabulary size is {size};"
                " use files of the same model"
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    if not tokenizers:
        return Tokenizers(None, None, {})
    return Tokenizers(tokenizers[0], tokenizers[-1], marian_files(path) if foreign and model_type == "marian" else {})


def _from_file(file: Path) -> Tokenizer:
    if not file.is_file():
        raise UserError(
            f"{file.parent}: found no {file.name}; the directory is incomplete, copy or save the model again"
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # The library `tokenizers` raises Exception, not a subclass.
        raise UserError(f"{file}: not a tokenizer ({str(error).splitlines()[0]})") from None


def fault_of(tokenizer: Tokenizer) -> str | None:
    """Return the first fault of a tokenizer from an untrusted file; None if it has none.

    Faults are properties with which a tokenizer greatly lengthens texts, runs for hours or crashes.
    """
    grown, longest = 1, getattr(tokenizer.model, "max_input_chars_per_word", 0)
    if longest > LONGEST_WORD:
        return f"expected 'max_input_chars_per_word' of at most {LONGEST_WORD:,}, found {longest:,}"
    for step in _steps(json.loads(tokenizer.normalizer.__getstate__()) if tokenizer.normalizer else None):
        grown *= max(1, len(step.get("content", "")), len(step.get("prepend", "")))
    if grown > LARGEST_GROWTH:
        return f"the normalizer lengthens texts up to {grown:,} times; expected at most {LARGEST_GROWTH:,} times"
    for text in _PROBES:
        try:
            tokenizer.decode(tokenizer.encode(text).ids[: len(text)])
        except (KeyboardInterrupt, SystemExit):
            raise
        # Tokenization fails, for example, if a character has no token. A panic of Rust code is a BaseException.
        except BaseException as error:
            return f"failed to encode the text {text[:3]!r}... ({str(error)[:100]})"
    return None


def _steps(normalizer: object) -> Iterator[JsonObject]:
    """Yield each single normalizer of a normalizer that may be a nested sequence."""
    if isinstance(normalizer, dict):
        yield normalizer
        for inner in normalizer.get("normalizers") or []:
            yield from _steps(inner)
