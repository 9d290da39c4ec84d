"""Read the tokenizers of model directories that other tools wrote without a tokenizer.json.

    BERT, DistilBERT      vocab.txt
    RoBERTa, GPT-2, GPT   vocab.json and merges.txt
    Pegasus               spiece.model
    Marian                source.spm, target.spm and vocab.json (OPUS-MT)

Each tokenizer gives the same ids as the tokenizer class in transformers 5.23 (tokenization_bert.py, _roberta, _gpt2,
_openai, _pegasus, _marian). All except Marian's can be saved as tokenizer.json.

Marian splits text with one SentencePiece model per language, then looks up the pieces in a joint vocabulary; missing
pieces become <unk>. The `tokenizers` library has no such model. SentencePiece is therefore the pre-tokenizer of a
word-level model, and the original files are saved. (The punctuation normalizer of Marian, which requires sacremoses, is
not used in transformers 5.23.)
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    NormalizedString,
    PreTokenizedString,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from manyheads.errors import UserError, extra
from manyheads.files import JsonMapping, JsonObject, parse_json

logger = logging.getLogger(__name__)

# Maximum number of special tokens before the SentencePiece pieces in a Pegasus vocabulary. Published models have 103.
LARGEST_OFFSET = 10_000
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")
OPTIONAL_FILES = ("target_vocab.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# names of all files that define tokenizers, except tokenizer.json
FILES = ("vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", *MARIAN_FILES, *OPTIONAL_FILES)


def foreign_tokenizers(path: Path, model_type: str, about: JsonMapping) -> tuple[Tokenizer, Tokenizer] | None:
    """Read the source and target tokenizers of a directory; return None if it contains no such files.

    about  content of tokenizer_config.json; {} if it is missing

    Both tokenizers are the same object, except for Marian. Raises UserError with a one-line message if a file is
    missing or damaged, or belongs to an incompatible tokenizer class.
    """
    names, classes, reader = _KINDS.get(model_type, ((), (), None))
    present = [name for name in names if (path / name).is_file()]
    if not present or reader is None:
        return None
    if absent := [name for name in names if name not in present]:
        raise UserError(f"{path}: found {', '.join(present)} without {', '.join(absent)}; copy the model again")
    named = about.get("tokenizer_class")
    if named is not None and str(named).removesuffix("Fast") not in classes:
        raise UserError(
            f"{path}: expected a {classes[0]}, found a {named}, which {present[0]} alone does not describe;"
            " save it as tokenizer.json with transformers"
        )
    try:
        return reader(path, about if "added_tokens_decoder" in about else _with_older_files(path, about))
    # The tokenizer libraries raise Exception, and a panic of Rust code is a BaseException.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: {', '.join(present)}: not the files of a tokenizer ({reason})") from None


def marian_files(path: Path) -> dict[str, bytes]:
    """Return the contents of the files of Marian's tokenizers, which are saved with the model unchanged."""
    names = (*MARIAN_FILES, *OPTIONAL_FILES)
    files = {name: (path / name).read_bytes() for name in names if (path / name).is_file()}
    about = parse_json(files.get("tokenizer_config.json", b"{}"))
    # Without this class name, other tools would read a tokenizer.json in the directory instead of these files.
    about["tokenizer_class"] = "MarianTokenizer"
    return files | {"tokenizer_config.json": json.dumps(about, indent=2, ensure_ascii=False).encode()}


def _bert(path: Path, about: JsonMapping) -> tuple[Tokenizer, Tokenizer]:
    special = _special(about, _BERT_TOKENS)
    vocabulary = _lines(path / "vocab.txt")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk"]))
    cased = next((word for word in vocabulary if re.search("[A-Z]", word) and word[0] not in "[<"), None)
    if cased is not None and "do_lower_case" not in about:
        logger.warning(
            f"{path}: keeping upper case, because vocab.txt has words such as {cased!r}; else set do_lower_case"
        )
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=about.get("tokenize_chinese_chars", True),
        strip_accents=about.get("strip_accents"),
        lowercase=about.get("do_lower_case", cased is None),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    _add(tokenizer, about, special.values())
    start, end = special["cls"], special["sep"]
    _surround(tokenizer, (start, end), f"{start}:0 $A:0 {end}:0", f"{start}:0 $A:0 {end}:0 $B:1 {end}:1")
    return tokenizer, tokenizer


_BERT_TOKENS = {name: f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}


def _byte_level(path: Path, prefix: bool) -> Tokenizer:
    """Return a byte-level BPE tokenizer. If `prefix` is true, the tokenizer adds a space before each text."""
    tokenizer = Tokenizer(models.BPE(*models.BPE.read_file(str(path / "vocab.json"), str(path / "merges.txt"))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _roberta(path: Path, about: JsonMapping) -> tuple[Tokenizer, Tokenizer]:
    prefix = bool(about.get("add_prefix_space", False))
    tokenizer = _byte_level(path, prefix)
    special = _special(about, _ROBERTA_TOKENS)
    _add(tokenizer, about, special.values())
    # The special tokens were added above, so each of them has an id.
    ids: JsonObject = {name: tokenizer.token_to_id(token) for name, token in special.items()}
    separator, start = ((special[name], ids[name]) for name in ("sep", "cls"))
    tokenizer.post_processor = processors.RobertaProcessing(
        separator, start, trim_offsets=bool(about.get("trim_offsets", True)), add_prefix_space=prefix
    )
    return tokenizer, tokenizer


_ROBERTA_TOKENS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>",
                   "mask": "<mask>"}  # fmt: skip


def _gpt2(path: Path, about: JsonMapping) -> tuple[Tokenizer, Tokenizer]:
    prefix = bool(about.get("add_prefix_space", False))
    tokenizer = _byte_level(path, prefix)
    end = "<|endoftext|>"
    special = {name: about.get(f"{name}_token", end) for name in ("unk", "bos", "eos")} | {
        "pad": about.get("pad_token")
    }
    _add(tokenizer, about, [_text(token) for token in special.values() if token is not None])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=prefix)
    if about.get("add_bos_token"):
        start = _text(special["bos"])
        _surround(tokenizer, [start], f"{start} $A")
    return tokenizer, tokenizer


def _gpt(path: Path, about: JsonMapping) -> tuple[Tokenizer, Tokenizer]:
    vocabulary, merges = models.BPE.read_file(str(path / "vocab.json"), str(path / "merges.txt"))
    unknown = _text(about.get("unk_token", "<unk>"))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    _add(tokenizer, about, [unknown])
    return tokenizer, tokenizer


def _sentencepiece(file: Path) -> tuple[list[tuple[str, float]], bytes]:
    """Return the pieces and scores of a SentencePiece model, and the table of its normalizer (empty for none)."""
    with extra("sentencepiece", "a SentencePiece model"):
        from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # The class is generated at import.
    model.ParseFromString(file.read_bytes())
    return [(piece.piece, piece.score) for piece in model.pieces], model.normalizer_spec.precompiled_charsmap


def _xlm_roberta(path: Path, about: JsonMapping) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizer of XLM-RoBERTa: four special tokens, the pieces after the first three, the mask token."""
    pieces, charsmap = _sentencepiece(path / "sentencepiece.bpe.model")
    special = _special(about, _ROBERTA_TOKENS)
    first = [(special[name], 0.0) for name in ("bos", "pad", "eos", "unk")]
    tokenizer = Tokenizer(models.Unigram([*first, *pieces[3:], (special["mask"], 0.0)], unk_id=3))
    if charsmap:
        tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    _add(tokenizer, about, special.values())
    start, end = special["cls"], special["sep"]
    _surround(tokenizer, (start, end), f"{start} $A {end}", f"{start} $A {end} {end} $B {end}")
    return tokenizer, tokenizer


def _pegasus(path: Path, about: JsonMapping) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizer of Pegasus.

    The ids are <pad>, </s>, two mask tokens, then unused tokens from <unk_2> on. The pieces of the SentencePiece
    model follow, beginning with its third piece.
    """
    pieces, charsmap = _sentencepiece(path / "spiece.model")
    offset = about.get("offset", 103)
    if type(offset) is not int or not 0 <= offset <= LARGEST_OFFSET:
        raise UserError(f"'offset' is {str(offset)[:40]}; expected 0 to {LARGEST_OFFSET:,}")
    tokens = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask_1>"}
    pad, end, unknown, mask = _special(about, tokens).values()
    masks = [mask, _text(about.get("mask_token_sent", "<mask_2>"))]
    unused = [f"<unk_{i}>" for i in range(2, offset)]
    vocabulary = [(token, 0.0) for token in (pad, end, *masks)] + [(token, -100.0) for token in unused]
    vocabulary += pieces[2:]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=[token for token, _ in vocabulary].index(unknown)))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(charsmap) if charsmap else normalizers.Replace(Regex(r"\n"), " "),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    _add(tokenizer, about, [pad, end, unknown, *masks, *unused])
    _surround(tokenizer, [end], f"$A {end}")
    return tokenizer, tokenizer


class _Pieces:
    """SentencePiece model in the form of a pre-tokenizer and a decoder of the library `tokenizers`.

    As a pre-tokenizer, it splits a text into pieces. As a decoder, it joins pieces to a text.
    """

    def __init__(self, file: Path) -> None:
        with extra("sentencepiece", "a SentencePiece model"):
            from sentencepiece import SentencePieceProcessor

        self.model = SentencePieceProcessor(model_file=str(file))

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        text.split(lambda _, part: [NormalizedString(piece) for piece in self.pieces(part.original)])

    def pieces(self, text: str) -> list[str]:
        """Split a text into pieces. A target language code at the beginning (">>fra<<") is one piece."""
        close = text.find("<<") if text.startswith(">>") else -1
        language = [text[: close + 2]] if close >= 0 else []
        return language + self.model.encode(text[close + 2 if language else 0 :], out_type=str)

    def decode_chain(self, tokens: list[str]) -> list[str]:
        return [self.model.decode_pieces(tokens).replace("▁", " ").strip()]


def _marian(path: Path, about: JsonMapping) -> tuple[Tokenizer, Tokenizer]:
    source, target = _Pieces(path / "source.spm"), _Pieces(path / "target.spm")
    separate = bool(about.get("separate_vocabs", False))
    end, unknown, pad = _special(about, {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}).values()

    def tokenizer(pieces: _Pieces, joined_by: _Pieces, vocabulary: Path) -> Tokenizer:
        made = Tokenizer(models.WordLevel(parse_json(vocabulary.read_text(encoding="utf-8")), unk_token=unknown))
        made.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(pieces)
        made.decoder = decoders.Decoder.custom(joined_by)
        _add(made, about, [end, unknown, pad])
        _surround(made, [end], f"$A {end}")
        return made

    first = tokenizer(source, source, path / "vocab.json")
    if not separate and source.model.serialized_model_proto() == target.model.serialized_model_proto():
        return first, first
    vocabulary = "target_vocab.json" if separate else "vocab.json"
    return first, tokenizer(target, target if separate else source, path / vocabulary)


_Reader = Callable[[Path, JsonMapping], tuple[Tokenizer, Tokenizer]]
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], _Reader]] = {
    # model type -> (required files, compatible tokenizer classes of transformers, function that reads the tokenizers)
    "bert": (("vocab.txt",), ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"), _bert),
    "distilbert": (("vocab.txt",), ("DistilBertTokenizer", "BertTokenizer"), _bert),
    "roberta": (("vocab.json", "merges.txt"), ("RobertaTokenizer",), _roberta),
    "xlm-roberta": (("sentencepiece.bpe.model",), ("XLMRobertaTokenizer",), _xlm_roberta),
    "gpt2": (("vocab.json", "merges.txt"), ("GPT2Tokenizer",), _gpt2),
    "openai-gpt": (("vocab.json", "merges.txt"), ("OpenAIGPTTokenizer",), _gpt),
    "pegasus": (("spiece.model",), ("PegasusTokenizer",), _pegasus),
    "marian": (MARIAN_FILES, ("MarianTokenizer",), _marian),
}


def _with_older_files(path: Path, about: JsonMapping) -> JsonObject:
    """Return the content of tokenizer_config.json with the settings from further files.

    Versions of transformers before 4.34 wrote these settings to separate files.
    """
    names = ("special_tokens_map.json", "added_tokens.json")
    special, added = (parse_json((path / n).read_text()) if (path / n).is_file() else {} for n in names)
    about = {**about, **special}
    tokens = {_text(token) for key, token in about.items() if key.endswith("_token")}
    tokens |= set(map(_text, about.get("extra_special_tokens") or []))
    described = {
        index: {"content": token, "normalized": token not in tokens, "special": token in tokens}
        for token, index in added.items()
    }
    return {**about, "added_tokens_decoder": described}


def _lines(file: Path) -> dict[str, int]:
    return {line.rstrip(): i for i, line in enumerate(file.read_text(encoding="utf-8").removesuffix("\n").split("\n"))}


def _special(about: JsonMapping, defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the special tokens in tokenizer_config.json by name, with defaults for missing tokens.

    about     content of tokenizer_config.json
    defaults  default token for each name; the result has the same names in the same order
    """
    return {name: _text(about.get(f"{name}_token", token)) for name, token in defaults.items()}


def _text(token: Any) -> str:
    """Return a special token as a string. In tokenizer_config.json it may be a string or an object."""
    return token["content"] if isinstance(token, dict) else token


def _surround(tokenizer: Tokenizer, special: Iterable[str], single: str, pair: str | None = None) -> None:
    """Let a tokenizer add special tokens to each text, as the templates for a text and for a pair of texts state."""
    ids = [(token, tokenizer.token_to_id(token)) for token in special]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _add(tokenizer: Tokenizer, about: JsonMapping, special: Iterable[str]) -> None:
    """Add the tokens that are never split: first the added tokens in tokenizer_config.json, then the special tokens."""
    described = about.get("added_tokens_decoder", {})
    keys = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    for _, token in sorted(described.items(), key=lambda item: int(item[0])):
        tokenizer.add_tokens([AddedToken(**{key: token[key] for key in keys if key in token})])
    known = {token["content"] for token in described.values()}
    extra = about.get("extra_special_tokens") or about.get("additional_special_tokens") or []
    tokenizer.add_special_tokens([token for token in [*special, *map(_text, extra)] if token not in known])
