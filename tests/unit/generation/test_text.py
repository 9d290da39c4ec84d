"""Streamed text: complete characters, and stop strings across tokens."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from manyheads.data.text.tokenizers import train_bpe, train_byte_bpe, train_character
from manyheads.generation import TextStream

TEXTS = ["Grüße, 世界! 👩‍🚀 naïve café — tab\tand\nline", "the cat sat on the mat, the cat sat", "ééé\ufffd"]


@pytest.fixture(scope="module")
def byte_bpe() -> Tokenizer:
    return train_byte_bpe(["the cat sat on the mat " * 5], 280)


def streamed(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None, stop: tuple[str, ...] = ()) -> str:
    stream = TextStream(tokenizer, prompt or [], stop)
    pieces = []
    for token in ids:
        pieces.append(stream.push(token))
        if stream.stopped:
            break
    pieces.append(stream.finish())
    assert "".join(pieces) == stream.text
    return stream.text


def test_pieces_are_whole_characters_that_add_up(byte_bpe: Tokenizer) -> None:
    for text in TEXTS:
        ids = byte_bpe.encode(text).ids
        assert streamed(byte_bpe, ids) == text
        for cut in range(len(text)):
            prompt, rest = byte_bpe.encode(text[:cut]).ids, byte_bpe.encode(text[cut:]).ids
            assert streamed(byte_bpe, rest, prompt) == text[cut:]
    stream = TextStream(byte_bpe)
    pieces = [stream.push(token) for token in byte_bpe.encode("👩é").ids]
    assert pieces == ["", "", "", "👩", "", "é"]


def test_invalid_bytes_are_shown_escaped(byte_bpe: Tokenizer) -> None:
    rng = random.Random(3)
    for _ in range(50):
        ids = [rng.randrange(256) for _ in range(12)]
        assert streamed(byte_bpe, ids) == byte_bpe.decode(ids)


def test_multi_byte_characters_are_decoded_when_complete() -> None:
    """The decoder gives no character for an incomplete one."""
    parts = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=parts, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    for text in ("€", "€€ and 世界!", "👩‍🚀" * 3, "a\ufffdb"):
        assert streamed(tokenizer, list(text.encode())) == tokenizer.decode(list(text.encode())) == text
    lone = [0xE2, 0x82, 0x41, 0xAC, 0x42]
    assert streamed(tokenizer, lone) == tokenizer.decode(lone)


def test_other_decoders_keep_spaces() -> None:
    words = train_bpe(TEXTS * 3, 90)
    prompt, text = "the cat", " sat on the mat"
    whole = words.encode(prompt + text).ids[:-1]
    begun = words.encode(prompt).ids[:-1]
    assert whole[: len(begun)] == begun
    assert streamed(words, whole[len(begun) :], begun) == text
    characters = train_character(TEXTS)
    assert streamed(characters, characters.encode(TEXTS[0]).ids) == TEXTS[0]


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        (decoders.BPEDecoder(suffix="</w>"), ["<unk>", "the</w>", "cat</w>", "s", "at</w>"]),
        (decoders.Metaspace(), ["<unk>", "\u2581the", "\u2581cat", "\u2581s", "at"]),
        (decoders.WordPiece(), ["<unk>", "the", "cat", "s", "##at"]),
    ],
)
def test_a_token_without_text_keeps_spaces(decoder: Any, words: list[str]) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<unk>"])
    for ids in ([1, 0, 2, 3, 4], [0, 1, 0, 0, 2, 0, 3, 4], [1, 2, 0, 0, 0, 1]):
        for begun in range(len(ids)):
            whole = tokenizer.decode(ids, skip_special_tokens=True)
            prompt = tokenizer.decode(ids[:begun], skip_special_tokens=True)
            assert prompt + streamed(tokenizer, ids[begun:], ids[:begun]) == whole


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (("on",), "the cat sat "),
        ((" sat on t",), "the cat"),
        (("mat,", "sat o"), "the cat "),
        (("sat o", "sat"), "the cat "),
        (("cat sat", "t s"), "the ca"),  # complete first, in whatever tokens they come
        (("dog",), None),
        (("catnip", "mats"), None),
        (("t",), ""),
        (("the cat sat on the mat, the cat sat",), ""),
        (("the cat sat on the mat, the cat sat down",), None),
    ],
)
def test_a_stop_string_ends_the_text(byte_bpe: Tokenizer, stop: tuple[str, ...], expected: str | None) -> None:
    text = TEXTS[1]
    for tokenizer in (byte_bpe, train_character([text])):
        assert streamed(tokenizer, tokenizer.encode(text).ids, stop=stop) == (text if expected is None else expected)


def test_no_part_of_a_stop_string_is_streamed() -> None:
    characters = train_character(["abcab."])
    stream = TextStream(characters, stop=["abc.", "ca"])
    pieces = [stream.push(token) for token in characters.encode("babab").ids]
    assert pieces == ["b", "", "", "ab", ""]
    assert stream.finish() == "ab"
    with pytest.raises(ValueError, match="an empty stop string"):
        TextStream(characters, stop=["a", ""])


def test_endless_invalid_bytes_use_bounded_memory(byte_bpe: Tokenizer) -> None:
    lone = byte_bpe.encode("é").ids[1:]
    rng = random.Random(5)
    for ids in (lone * 300, [rng.choice([*lone, *byte_bpe.encode("👩é").ids]) for _ in range(300)]):
        for before in ([], byte_bpe.encode("the cat").ids):
            stream = TextStream(byte_bpe, before)
            for token in ids:
                stream.push(token)
                assert len(stream._ids) < 60
            stream.finish()
            assert stream.text == byte_bpe.decode([*before, *ids]).removeprefix(byte_bpe.decode(before))
