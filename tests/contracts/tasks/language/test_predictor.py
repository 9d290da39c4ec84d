"""Text continuation: compared with transformers, in batches, streamed, stopped; GPT-2's vocabulary and weights."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Tokenizer, pipeline

import manyheads
from manyheads import directory
from manyheads.data.readers.texts import Texts
from manyheads.data.text.tokenizers import END_OF_TEXT, train_byte_bpe, train_character
from manyheads.generation import Sampling
from manyheads.generation.continuous import sample
from manyheads.models.gpt import GPT
from manyheads.models.presets import preset
from manyheads.tasks.language.predictor import LanguageModel

CORPUS = ["the cat sat on the mat, the dog sat on the cat — naïve café, 世界! " * 4]
PROMPTS = ["the cat", "", "a dog, and another dog sat on", "世"]
POSITIONS = 24


def save(path: Path, tokenizer: Tokenizer, **settings: Any) -> Path:
    torch.manual_seed(0)
    end = tokenizer.token_to_id(END_OF_TEXT)
    sizes = {"vocab": tokenizer.get_vocab_size(), "end": end, "width": 16, "layers": 2, "heads": 2}
    model = GPT(preset("gpt2/nano", **{**sizes, "max_positions": POSITIONS, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    directory.save(path, model, tokenizer)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("gpt"), train_byte_bpe(CORPUS, 300))


@pytest.fixture(scope="module")
def generator(path: Path) -> LanguageModel:
    generator = manyheads.load(path)
    assert isinstance(generator, LanguageModel)
    generator.model.double()
    return generator


def test_greedy_equals_transformers(generator: LanguageModel, path: Path) -> None:
    other: Any = AutoModelForCausalLM.from_pretrained(path).double()
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.eos_token == tokenizer.bos_token == END_OF_TEXT
    for prompt in ("the cat", "the dog sat"):
        ids = tokenizer(prompt, return_tensors="pt")
        assert ids["input_ids"][0].tolist() == generator.tokenizer.encode(prompt).ids
        for penalty in (1.0, 1.3):
            written = other.generate(**ids, max_new_tokens=12, do_sample=False, repetition_penalty=penalty)
            found = generator.generate(prompt, max_tokens=12, temperature=0, repetition_penalty=penalty)
            assert found == tokenizer.decode(written[0], skip_special_tokens=True)


def test_an_exported_model_works_in_transformers_pipeline(path: Path) -> None:
    generate = pipeline("text-generation", model=str(path), tokenizer=str(path))
    (found,) = generate("the cat", max_new_tokens=5, do_sample=False)
    assert found["generated_text"] == manyheads.load(path).generate("the cat", max_tokens=5, temperature=0)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_batch_equals_single(generator: LanguageModel, temperature: float) -> None:
    how: dict[str, Any] = {"max_tokens": 40, "temperature": temperature, "top_k": 50, "repetition_penalty": 1.1}
    together = generator.generate(PROMPTS, **how, seed=5)
    assert together == [generator.generate(prompt, **how, seed=5 + i) for i, prompt in enumerate(PROMPTS)]
    assert together[::-1] == generator.generate(PROMPTS[::-1], **how, seed=[8, 7, 6, 5])
    assert all(text.startswith(prompt) for text, prompt in zip(together, PROMPTS, strict=True))


def test_many_texts_take_several_batches(generator: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generator.generate(PROMPTS * 2, max_tokens=6, seed=1)
    monkeypatch.setattr("manyheads.tasks.language.predictor.GENERATED_TOKENS", 3 * POSITIONS)
    assert generator.generate(PROMPTS * 2, max_tokens=6, seed=1) == whole


def test_concurrent_texts_respect_the_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator: Any = manyheads.load(save(tmp_path / "gpt", train_byte_bpe(CORPUS, 300), max_positions=512))
    model, begun = generator.compiled, list[tuple[int, int]]()
    start = model.start

    def started(rows: int, capacity: int) -> Any:
        begun.append((rows, capacity))
        return start(rows, capacity)

    monkeypatch.setattr(model, "start", started)
    monkeypatch.setattr("manyheads.tasks.language.predictor.GENERATED_TOKENS", 600)
    generator.generate(["a"] * 100, max_tokens=4)
    assert sum(rows for rows, _ in begun) >= 100
    assert max(rows * capacity for rows, capacity in begun) <= 600
    monkeypatch.setattr("manyheads.tasks.language.predictor.LOGITS", 7 * generator.model.config.vocab)
    begun.clear()
    generator.generate(["a"] * 20, max_tokens=4)
    assert max(rows for rows, _ in begun) <= 7


def test_streamed_pieces_add_up_and_stop_strings_end_them(generator: LanguageModel) -> None:
    pieces: dict[int, list[str]] = {}
    whole = generator.continuations(
        PROMPTS, Sampling(), max_tokens=30, seed=3, stream=lambda i, piece: pieces.setdefault(i, []).append(piece)
    )
    assert {i: "".join(each) for i, each in pieces.items()} == {i: c.text for i, c in enumerate(whole) if c.text}
    assert max(map(len, pieces.values())) > 5
    assert {c.reason for c in whole} <= {"length", "end"}
    text = whole[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    (stopped,) = generator.continuations([PROMPTS[0]], Sampling(), max_tokens=30, seed=3, stop=["never seen", stop])
    assert stopped.text == text[: text.index(stop)]
    assert (stopped.reason, str(stopped)) == ("stop", PROMPTS[0] + stopped.text)


def test_the_end_token_ends_a_text(generator: LanguageModel) -> None:
    found = generator.continuations([""] * 20, Sampling(), max_tokens=400, seed=0)
    ended = [c for c in found if c.reason == "end"]
    assert ended
    assert all(c.tokens < 400 and END_OF_TEXT not in c.text for c in ended)
    assert all(c.tokens == 400 for c in found if c.reason == "length")


def test_a_text_is_scored_for_any_pieces(generator: LanguageModel) -> None:
    texts = Texts(["".join(f"the cat sat on mat {i}\n" for i in range(200)), "世界! naïve\n"])
    outcome = generator.score(texts, context=POSITIONS, stride=POSITIONS // 2)
    assert "".join(outcome.inputs) == "".join(texts.texts)
    assert len(outcome.inputs) >= 4
    sizes = [len(piece.encode()) for piece in outcome.inputs]
    bits = -sum(q * size for q, size in zip(outcome.quality, sizes, strict=True)) / sum(sizes)
    assert bits == pytest.approx(outcome.metrics["bits_per_byte"]["value"])
    ids = sum(len(generator.tokenizer.encode(text).ids) for text in texts.texts)
    assert f"{ids + 1:,} tokens|windows of 24, one every 12" in outcome.metrics["loss"]["signature"]


def test_without_an_end_token_the_first_token_is_not_scored(tmp_path: Path) -> None:
    characters = train_character(CORPUS)
    generator = manyheads.load(save(tmp_path, characters, end=None))
    outcome = generator.score(Texts(["世界! cat"]), context=8, stride=8)
    assert outcome.metrics["bits_per_byte"]["signature"].startswith("8 UTF-8 bytes|6 tokens")
    assert generator.generate("the", max_tokens=3).startswith("the")
    with pytest.raises(ValueError, match="text 2 is empty, but the vocabulary has no start token"):
        generator.generate(["the", ""])


def test_unreadable_texts_are_reported(generator: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="text 2 has 3[0-9] tokens, the model takes 24: shorten it"):
        generator.generate(["the", "xyz" * 11])
    with pytest.raises(ValueError, match="max_tokens is 0: expected a whole number from 1"):
        generator.generate("the", max_tokens=0)
    for verb in (generator.generate, generator.attend):
        with pytest.raises(ValueError, match="text.* contains half a character .* at position 2; give valid UTF-8"):
            verb("a\ud800")
    wrong: dict[str, list[Any]] = {
        "seed": [-1, True, None, 2**63, [1.5]], "stop": [5, [None]], "max_tokens": [1.5, None],
    }  # fmt: skip
    for setting, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(ValueError, match=f"{setting} is .*: expected"):
            generator.generate("the", **{setting: value})
    assert generator.generate("the", seed=np.int64(3), stop=None) == generator.generate("the", seed=3)
    with pytest.raises(ValueError, match="2 seeds for 1 texts"):
        generator.generate("the", seed=[1, 2])
    with pytest.raises(ValueError, match="found an empty stop string"):
        generator.generate("the", stop="")
    characters = manyheads.load(save(tmp_path, train_character(CORPUS)))
    with pytest.raises(ValueError, match="text 1 has 'Q' at character 3, which is not in the vocabulary"):
        characters.generate("a Q")
    with pytest.raises(ValueError, match="found no result.json that names its test data"):
        characters.outcome()
    directory.save(tmp_path / "bare", characters.model, None)
    with pytest.raises(ValueError, match=r"bare: found no tokenizer.json"):
        manyheads.load(tmp_path / "bare")


def test_gpt2_s_published_vocabulary(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    """Load vocab.json and merges.txt next to a model, as on the Hub."""
    files = real_data("gpt2_tokenizer")
    model = GPT(preset("gpt2/124m", width=4, layers=1, heads=1, max_positions=64))
    directory.save(tmp_path, model, None)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(files / name, tmp_path / name)
    generator = manyheads.load(tmp_path)
    reference = GPT2Tokenizer.from_pretrained(files)
    assert generator.tokenizer.encode("Studying Deep-Learning is").ids == [13007, 1112, 10766, 12, 41730, 318]
    for text in (*CORPUS, "Hello world", "  two  spaces\n\n\tand's we'll 1234", "👩‍🚀", " leading", END_OF_TEXT):
        ids = generator.tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reference(text)["input_ids"], text
        assert generator.tokenizer.decode(ids, skip_special_tokens=False) == text
    assert generator.generate("Hello world", max_tokens=3).startswith("Hello world")


def test_the_lectures_example() -> None:
    """Fleuret's lecture on Transformers: GPT-2's eleven most probable tokens after `Studying Deep-Learning is`."""
    if not (path := os.environ.get("GPT2_DIR")):
        pytest.skip("needs GPT-2's real weights: set GPT2_DIR to a directory of openai-community/gpt2")
    text = manyheads.load(path).generate("Studying Deep-Learning is", max_tokens=11, temperature=0)
    assert text == "Studying Deep-Learning is a great way to learn about the world around you."


def test_ids_without_a_token_are_never_generated(tmp_path: Path) -> None:
    tokenizer = train_byte_bpe(CORPUS, 300)
    size = tokenizer.get_vocab_size()
    gpt = manyheads.load(save(tmp_path, tokenizer, vocab=2 * size, end=None))
    assert gpt.unused == [*range(size, 2 * size)]
    model = gpt.model
    steps = sample(
        model.start, model.step, [[5]], Sampling(), context=POSITIONS, limits=[60], seeds=[1], suppressed=gpt.unused
    )
    assert max(token for step in steps for _, token in step) < size
    steps = sample(model.start, model.step, [[5]], Sampling(), context=POSITIONS, limits=[60], seeds=[1])
    assert max(token for step in steps for _, token in step) >= size  # without the list, they are
    (continuation,) = gpt.continuations(["the"], Sampling(), max_tokens=60, seed=1)
    assert continuation.tokens == 60
