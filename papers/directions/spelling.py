"""Tokenizer of ELMo, which spells each word in bytes (Peters 2018)."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from manyheads.data.text.tokenizers import special_tokens_as_text


def spelled_words() -> Tokenizer:
    """Return ELMo's tokenizer, which encodes each word and each punctuation mark as a space and its UTF-8 bytes.

    The ids are those of the published model (Peters 2018): 0 is padding, 1 to 256 are the bytes, and 257 and 258 mark
    the begin and the end of a text.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that byte-level BPE writes as themselves
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    marks = {"<pad>": 0, "<s>": 257, "</s>": 258}
    tokenizer = Tokenizer(models.BPE(marks | {names[byte]: byte + 1 for byte in range(256)}, []))
    words, spelled = pre_tokenizers.BertPreTokenizer(), pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*marks])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[*marks.items()][1:])
    return special_tokens_as_text(tokenizer)
