"""OPUS-MT directories, from loading to fine-tuning: SentencePiece models, a joint vocabulary, Marian."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer

import manyheads
from manyheads import directory, export
from manyheads.tasks.train import train
from tests.support.opus import ENGLISH, GERMAN, write_opus
from tests.support.reference import tokenizer, translate


def their_ids(path: Path, texts: list[str]) -> list[list[int]]:
    """Return the greedy output of transformers with its tokenizer, without end and padding tokens."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert isinstance(tokenizer, MarianTokenizer)
    model = AutoModelForSeq2SeqLM.from_pretrained(path)
    ids = model.generate(**tokenizer(texts, return_tensors="pt", padding=True), num_beams=1, max_length=40).tolist()
    return [[token for token in row if token not in (0, model.config.pad_token_id)] for row in ids]


def our_ids(path: Path, texts: list[str]) -> list[list[int]]:
    loaded = directory.load(path)
    assert loaded.tokenizer is not None
    return [translate(loaded.model, loaded.tokenizer.encode(text).ids, limit=38) for text in texts]


@pytest.mark.parametrize("separate", [False, True])
def test_translations_equal_transformers_before_and_after_saving(tmp_path: Path, separate: bool) -> None:
    write_opus(tmp_path / "opus", separate=separate, noise=0.5)
    loaded = directory.load(tmp_path / "opus")
    assert (loaded.family, loaded.target_tokenizer is loaded.tokenizer) == ("marian", False)
    expected = their_ids(tmp_path / "opus", ENGLISH)
    assert our_ids(tmp_path / "opus", ENGLISH) == expected
    assert len({tuple(ids) for ids in expected}) > 1
    saved = tmp_path / "saved"
    name = directory.save(
        saved, loaded.model, loaded.tokenizer, loaded.target_tokenizer, vocabulary=loaded.vocabulary
    )  # fmt: skip
    assert name == "marian"
    for file in ("source.spm", "target.spm", "vocab.json"):
        assert (saved / file).read_bytes() == (tmp_path / "opus" / file).read_bytes()
    assert our_ids(saved, ENGLISH) == their_ids(saved, ENGLISH) == expected
    export.export(saved, tmp_path / "exported", "hf")
    assert our_ids(tmp_path / "exported", ENGLISH) == expected


def test_extra_files_are_ignored(tmp_path: Path) -> None:
    """A tokenizer.json is read where the class says so; two vocabularies are no model for CTranslate2."""
    write_opus(tmp_path / "opus", separate=True)
    with pytest.raises(ValueError, match="expected one vocabulary, found two"):
        export.export(tmp_path / "opus", tmp_path / "ct2", "ctranslate2")
    tokenizer().save(str(tmp_path / "opus" / "tokenizer.json"))
    assert directory.load(tmp_path / "opus").vocabulary
    (tmp_path / "opus" / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="the tokenizer has token ids up to 58, but the model's vocabulary size is 40"):
        directory.load(tmp_path / "opus")
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / "opus" / name).unlink()
    config = json.loads((tmp_path / "opus" / "config.json").read_text())
    (tmp_path / "opus" / "config.json").write_text(json.dumps({**config, "tokenizer_class": "MarianTokenizer"}))
    with pytest.raises(ValueError, match="the tokenizer has token ids up to 58, but the model's vocabulary size is 40"):
        directory.load(tmp_path / "opus")


def test_texts_are_translated_as_a_list(tmp_path: Path) -> None:
    _, theirs = write_opus(tmp_path)
    translator = manyheads.load(tmp_path)
    expected = [theirs.decode(ids) for ids in our_ids(tmp_path, ENGLISH[:2])]
    found = translator.translate(["", *ENGLISH[:2]], beam=1)
    assert found[0] == ""
    assert [a.startswith(b) for a, b in zip(found[1:], expected, strict=True)] == [True, True]
    assert len(translator.nbest(ENGLISH[:3], 2, beam=3)) == 3
    assert translator.score(ENGLISH[:1], GERMAN[:1])[0].log_probability < 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a random OPUS-MT model on sentences of its vocabulary, and return the run directory."""
    folder = tmp_path_factory.mktemp("opus")
    write_opus(folder / "opus")
    for split in ("train", "val", "test"):
        for language, lines in (("en", ENGLISH), ("de", GERMAN[: len(ENGLISH)] + GERMAN[: len(ENGLISH) - len(GERMAN)])):
            part = lines[:6] if split == "train" else lines[:2]
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in part), encoding="utf-8")
    settings: dict[str, Any] = {
        "data": str(folder), "threads": 1, "batch_tokens": 256, "training.steps": 180, "beam": 1,
        "training.schedule": "constant", "training.learning_rate": 3e-3, "training.checkpoint_every": 60,
        "training.validate_every": 60, "smoothing": 0.0,
    }  # fmt: skip
    result = train("translation", settings, out=folder / "run", init=str(folder / "opus"))
    assert result is not None
    assert result["metrics"]["bleu_13a"]["value"] > 0
    return folder / "run"


def test_a_fine_tuned_model_translates_the_same_in_transformers(run: Path) -> None:
    translator = manyheads.load(run)
    expected = their_ids(run, ENGLISH[:6])
    assert max(map(len, expected)) < 30, "it did not learn to end"
    assert our_ids(run, ENGLISH[:6]) == expected
    assert len({tuple(ids) for ids in expected}) >= 5
    tokenizer = AutoTokenizer.from_pretrained(run)
    assert translator.translate(ENGLISH[:6], beam=1) == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert json.loads((run / "result.json").read_text())["metrics"]["chrf"]["value"] > 50
    assert not translator.model.target_embedding.weight[translator.model.config.pad].any()


def test_a_fine_tuned_model_translates_the_same_in_ctranslate2(run: Path, tmp_path: Path) -> None:
    assert export.export(run, tmp_path / "ct2", "ctranslate2") == "marian"
    assert {"source.spm", "target.spm", "vocab.json"} < {file.name for file in (tmp_path / "ct2").iterdir()}
    tokenizer = AutoTokenizer.from_pretrained(run)
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", inter_threads=1)
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(ENGLISH[:6])["input_ids"]]
    found = translator.translate_batch(tokens, beam_size=1, max_decoding_length=38)
    assert [tokenizer.convert_tokens_to_ids(each.hypotheses[0]) for each in found] == our_ids(run, ENGLISH[:6])


def test_a_fine_tuned_run_can_be_fine_tuned(run: Path, tmp_path: Path) -> None:
    """A saved run can be fine-tuned again.

    Source and target have separate caches, because one text has different ids in each.
    """
    loaded = directory.load(run)
    assert loaded.tokenizer is not None
    assert loaded.target_tokenizer is not None
    text = "Hund dog"
    assert loaded.tokenizer.encode(text).ids != loaded.target_tokenizer.encode(text).ids
    stores = list((run / "state" / "tokens").glob("*.tokens"))
    assert len(stores) == 4
    settings: dict[str, Any] = {"data": str(run.parent), "threads": 1, "training.steps": 2, "beam": 1}
    assert train("translation", settings, out=tmp_path / "again", init=str(run)) is not None
    assert their_ids(tmp_path / "again", ENGLISH[:2]) == our_ids(tmp_path / "again", ENGLISH[:2])
    assert torch.isfinite(next(directory.load(tmp_path / "again").model.parameters())).all()
