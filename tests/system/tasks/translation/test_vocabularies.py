"""Translation runs with two vocabularies, word vocabularies, and a unigram model."""

import json
from pathlib import Path

import pytest
import torch
import transformers

import manyheads
from manyheads.tasks.train import train
from tests.contracts.tasks.translation.conftest import write_corpus
from tests.contracts.tasks.translation.test_run import SMALL


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus")


def test_two_vocabularies_are_trained(corpus: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "data": str(corpus), "joint": False, "model.tie": "none", "training.steps": 250}
    settings |= {"vocabulary": 40, "training.learning_rate": 5e-3}
    result = train("translation", settings, out=tmp_path / "run")
    assert result["metrics"]["exact_match"]["value"] > 0.9
    translator = manyheads.load(tmp_path / "run")
    assert translator.family == "manyheads-transformer"
    assert torch.count_nonzero(translator.model.source_embedding.weight[translator.model.source_pad]) == 0


def test_two_word_vocabularies_are_supported(corpus: Path, tmp_path: Path) -> None:
    """As in the PyTorch tutorial: sources begin with <bos>, and so does decoding."""
    settings = {**SMALL, "data": str(corpus), "joint": False, "tokenizer": "words", "training.steps": 250}
    settings |= {"model.tie": "none", "model.embedding_init": "xavier", "vocabulary": [22, 21]}
    result = train("translation", {**settings, "training.learning_rate": 5e-3}, out=tmp_path / "run")
    assert result["metrics"]["exact_match"]["value"] > 0.9
    translator = manyheads.load(tmp_path / "run")
    c = translator.model.config
    assert (c.pad, c.start, c.end, c.source_pad) == (1, 2, 3, 1)
    assert (c.source_vocab, c.target_vocab) == (4 + 17, 4 + 17)  # seven words and ten digits; 22 is more than there are
    assert translator.tokenizer.encode("two dog").tokens == ["<bos>", "two", "dog", "<eos>"]
    assert translator.target_tokenizer.encode("zwei Hund").tokens == ["zwei", "Hund", "<eos>"]
    written = translator.attend("two red dog 1").axes["cross"]
    assert written[0].keys.tokens[0] == "<bos>"
    for weights in (translator.model.source_embedding.weight, translator.model.target_embedding.weight):
        assert not weights[1].any()


def test_a_unigram_vocabulary(corpus: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "data": str(corpus), "tokenizer": "unigram", "training.steps": 250}
    result = train("translation", {**settings, "training.learning_rate": 5e-3}, out=tmp_path / "run")
    assert result["metrics"]["exact_match"]["value"] > 0.9
    assert json.loads((tmp_path / "run" / "tokenizer.json").read_text())["model"]["type"] == "Unigram"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    assert (
        theirs("one red dog 7")["input_ids"] == manyheads.load(tmp_path / "run").tokenizer.encode("one red dog 7").ids
    )
    given = {"data": str(corpus), "tokenizer": "unigram"}
    with pytest.raises(ValueError, match="tokenizer: determined by the initial model"):
        train("translation", given, out=tmp_path / "tuned", init=str(tmp_path / "run"))
