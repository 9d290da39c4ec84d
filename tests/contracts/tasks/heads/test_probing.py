"""Probing of whole models: a constructed head is found, words are merged as by a loop, and bad input is reported."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from manyheads.analysis.heads import HeadStatistics
from manyheads.core.attention import Attention
from manyheads.core.block import Block
from manyheads.core.recording import record
from manyheads.core.runtime import prepare
from manyheads.data.readers.treebank import read_treebank
from manyheads.data.text.tokenizers import train_bpe, train_byte_bpe, train_wordpiece
from manyheads.models import bert, gpt, sequence_baselines, transformer, universal
from manyheads.models.presets import preset
from manyheads.tasks.heads.probing import probe
from manyheads.tasks.heads.word_maps import WordReader, Words

WORDS = ("the", "dog", "sees", "a", "cat", "big", "old")
TREE = {"the": ("dog", "det"), "a": ("cat", "det"), "big": ("dog", "amod"), "old": ("cat", "amod"),
        "dog": ("sees", "nsubj"), "cat": ("sees", "obj"), "sees": (None, "root")}  # fmt: skip


def conllu(order: list[str]) -> str:
    lines = []
    for i, word in enumerate(order, 1):
        head, relation = TREE[word]
        at = 0 if head is None else order.index(head) + 1
        lines.append("\t".join([str(i), word, "_", "X", "_", "_", str(at), relation, "_", "_"]))
    return "\n".join(lines) + "\n\n"


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same words in a random order each time, so that no offset finds them."""
    random = np.random.default_rng(1)
    file = tmp_path_factory.mktemp("bank") / "a.conllu"
    file.write_text("".join(conllu([WORDS[i] for i in random.permutation(7)]) for _ in range(60)))
    return file


def reader(model: nn.Module, tokenizer: Tokenizer | None) -> Any:
    return SimpleNamespace(model=model.eval(), tokenizer=tokenizer, path="models/x", compute=prepare(device="cpu"))


def determined() -> tuple[bert.Bert, Tokenizer]:
    """A BERT whose head 1 of layer 0 looks from an article to its noun, and whose head 0 looks to the next token."""
    tokenizer = train_wordpiece([" ".join(WORDS)] * 3, 42)
    model = bert.Bert(preset("bert/tiny", vocab=64, width=128, heads=2, layers=2, feed_forward=8, max_positions=32))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    for norm in (module for module in model.modules() if isinstance(module, nn.LayerNorm)):
        nn.init.ones_(norm.weight)
    size = tokenizer.get_vocab_size()
    assert size <= 64
    with torch.no_grad():
        model.embedding.weight[:size, :size] = torch.eye(size)  # the first half says which token it is,
        model.positions.table[:, 64:96] = torch.eye(32)  # the second where it stands
        block = model.encoder.blocks[0]
        assert isinstance(block, Block)
        assert isinstance(block.attention, Attention)
        query, key = block.attention.query.weight, block.attention.key.weight
        query[1:32, 64:95] = torch.eye(31)
        key[:32, 64:96] = torch.eye(32)
        ids = tokenizer.get_vocab()
        for article, noun in (("the", "dog"), ("a", "cat")):
            query[64 + ids[noun], ids[article]] = 1.0
        key[64:128, :64] = torch.eye(64)
    return model, tokenizer


def test_a_constructed_head_is_identified(treebank: Path) -> None:
    found = probe(reader(*determined()), treebank)
    assert found.counts["sentences"] == 60
    row = found.dependencies.best("det")
    assert (row.accuracy, row.layer, row.head, row.direction) == (1.0, 0, 1, "dep->head")
    assert row.items == 120
    assert row.held_out == 1.0
    assert row.base < 0.4
    chance = 1 / 6
    for relation in ("amod", "nsubj", "obj"):
        assert found.dependencies.best(relation).held_out == pytest.approx(chance, abs=0.2)
    following = found.heads[0]
    assert following.next > 0.85
    assert found.coreference is None
    assert found.parsers == {}
    assert "Probe('models/x'" in repr(found)
    document = found.document(minimum=100)
    assert [row["group"] for row in document["relations"]] == ["all", "amod", "det"]
    assert document["layers"] == ["encoder.blocks.0.attention", "encoder.blocks.1.attention"]


def test_parsers_learn_a_heads_relation(treebank: Path) -> None:
    bank = read_treebank(treebank)
    found = probe(reader(*determined()), replace(bank, sentences=bank.sentences[:20]), train=treebank)
    assert set(found.parsers) == {"attention", "attention + words", "distances + words"}
    assert {name: count for name, count in found.counts.items() if name.startswith("train_")} == {
        "train_sentences": 60, "train_skipped": 0, "train_too_long": 0, "train_unread": 0,
    }  # fmt: skip
    blind, words, distances = found.parsers.values()
    assert blind.words == 120
    assert blind.low < blind.value < blind.high
    assert words.value > blind.value > 0.3  # det, and something by the next token
    assert words.value > distances.value


def random_(model: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def merged(map: Tensor, owners: list[int], words: int) -> Tensor:
    """(H, T, T) -> (H, W, W), by loops."""
    found = torch.zeros(map.shape[0], words, words)
    for w in range(words):
        rows = [t for t, owner in enumerate(owners) if owner == w]
        for v in range(words):
            columns = [t for t, owner in enumerate(owners) if owner == v]
            if rows:
                found[:, w, v] = torch.stack([map[:, r, columns].sum(-1) for r in rows]).mean(0)
    return found


def test_words_are_merged_from_tokens_for_any_batch() -> None:
    tokenizer = train_wordpiece(["ab cd abcd dcba", "the dog"] * 3, 24)
    model = random_(bert.Bert(preset("bert/tiny", vocab=64, width=8, heads=2, layers=2, feed_forward=8)))
    texts = [Words(["abcd", "the", "dcba"], [False, True, True]), Words(["ab", "\x07", "dog"], [False, False, True]),
             Words(["dog"], [False])]  # fmt: skip
    read = WordReader(reader(model, tokenizer))
    statistics = HeadStatistics()
    found = {each.number: each for each in read.maps(texts, statistics)}
    assert [found[i].seen for i in range(3)] == [[True] * 3, [True, False, True], [True]]
    assert (read.unseen, read.too_long) == (1, 0)
    assert len(read.layers) == 2
    sums = []
    for number, text in enumerate(texts):
        pieces = [tokenizer.encode(word, add_special_tokens=False).ids for word in text.words]
        owners = [-1, *(w for w, ids in enumerate(pieces) for _ in ids), -1]
        ids = tokenizer.encode(" ".join(text.words)).ids
        assert len(ids) == len(owners)
        with torch.no_grad(), record(model) as maps:
            model(torch.tensor([ids]))
        for layer, calls in enumerate(maps.values()):
            torch.testing.assert_close(found[number].maps[layer], merged(calls[0][0], owners, len(text.words)))
        sums.append(next(iter(maps.values()))[0][0, 0, :, -1])
    head = statistics.heads()[0]
    assert head.special["[SEP]"] == pytest.approx(float(torch.cat(sums).mean()), abs=1e-5)
    vectors = read.vectors(texts[0])
    weight = model.get_parameter("embedding.weight").detach()
    ids = tokenizer.encode("abcd", add_special_tokens=False).ids
    torch.testing.assert_close(vectors[0], weight[ids].mean(0) / weight.std())


def test_a_language_model_reads_words_with_spaces_and_is_causal(treebank: Path) -> None:
    tokenizer = train_byte_bpe([" ".join(WORDS)] * 3, 276)
    config = preset("gpt2/nano", vocab=276, width=8, heads=2, layers=2, max_positions=16)
    read = WordReader(reader(random_(gpt.GPT(config)), tokenizer))
    text = Words(["big", "dog", "'s"], [False, True, False])
    assert read.pieces(text) == [tokenizer.encode(word).ids for word in ("big", " dog", "'s")]
    (found,) = read.maps([text])
    assert found.maps.shape == (2, 2, 3, 3)
    assert not found.maps.triu(1).any()
    accuracy = probe(reader(random_(gpt.GPT(config)), tokenizer), treebank).dependencies
    assert accuracy.right.shape[1:] == (2, 2, 2)


def test_encoder_decoder_and_universal_models_show_source_and_steps() -> None:
    tokenizer = train_bpe([" ".join(WORDS)] * 3, 36)
    size = tokenizer.get_vocab_size()
    special: dict[str, Any] = {"source_vocab": size, "target_vocab": size, "pad": size - 1, "start": size - 1, "end": 0}
    model = transformer.Transformer(preset("transformer/tiny", **special, width=8, encoder_layers=1, decoder_layers=1))
    read = WordReader(reader(random_(model), tokenizer))
    assert len(list(read.maps([Words(WORDS, [True] * 7)]))) == 1
    assert read.layers == ("encoder.blocks.0.attention",)
    config = universal.UniversalConfig(**special, width=8, heads=2, feed_forward=8, steps=4, halting="basic")
    thinking = universal.Universal(config)
    read = WordReader(reader(thinking, tokenizer))
    thinking.encoder.halt.bias.data.fill_(9.0)  # type: ignore[union-attr] # all halt at once
    (found,) = read.maps([Words(WORDS, [True] * 7)])
    assert [layer[-6:] for layer in read.layers] == ["step 1", "step 2", "step 3", "step 4"]
    assert found.maps[0].any()
    assert not found.maps[3].any()
    thinking.encoder.halt.bias.data.fill_(-1.0)  # type: ignore[union-attr]
    thinking.encoder.halt.weight.data.normal_(std=3.0)  # type: ignore[union-attr]
    texts = [Words(WORDS[:2], [True] * 2), Words(WORDS, [True] * 7)]
    together = {found.number: found.maps for found in read.maps(texts)}
    alone = [next(read.maps([text])).maps for text in texts]
    for number, one in enumerate(alone):
        torch.testing.assert_close(together[number], one, atol=1e-6, rtol=1e-5)
    rows = [map[step].sum(-1) > 0 for map in alone for step in range(4)]
    assert not all(row.all() for row in rows)  # some have halted before the others


def test_mismatches_are_reported(treebank: Path) -> None:
    model, tokenizer = determined()
    with pytest.raises(ValueError, match="models/x: expected a model that reads texts"):
        probe(reader(model, None), treebank)
    lstm = sequence_baselines.SequenceBaseline(preset("sequence-baseline/lstm"))
    with pytest.raises(ValueError, match="models/x: SequenceBaseline has no attention heads to probe"):
        probe(reader(lstm, tokenizer), treebank)
    small = bert.Bert(preset("bert/tiny", vocab=64, width=8, heads=2, layers=1, max_positions=5))
    with pytest.raises(
        ValueError, match="found no word to score in 60 sentences. 60 sentences exceed the model's limit"
    ):
        probe(reader(small, tokenizer), treebank)


def test_coreference_uses_windows_of_sentences(tmp_path: Path) -> None:
    model, tokenizer = determined()
    rows = [("dog", "(1-x)"), ("sees", "_"), ("a", "(2-y"), ("cat", "2)")]
    sentence = "\n".join(
        "\t".join([str(i), word, "_", "NOUN", "_", "_", str((0, 1, 4, 2)[i - 1]), "x", "_",
                   mark if mark == "_" else f"Entity={mark}"])
        for i, (word, mark) in enumerate(rows, 1)
    )  # fmt: skip
    file = tmp_path / "a.conllu"
    file.write_text("\n\n".join(["# newdoc\n" + sentence, *[sentence] * 6] * 2) + "\n")
    found = probe(reader(model, tokenizer), file).coreference
    assert found is not None
    row = found.best("nominal")
    assert row.items == 2 * 2 * 6  # all but the first of an entity in each document, for seven sentences are a window
    assert row.baselines == {"nearest": 0.0, "same word": 1.0}
    # with room for three sentences there are three windows of a document, the last of one sentence
    narrow = bert.Bert(preset("bert/tiny", vocab=64, width=8, heads=2, layers=1, max_positions=14))
    found = probe(reader(narrow, tokenizer), file).coreference
    assert found is not None
    assert found.best().items == 2 * 2 * (2 + 2)


def test_a_source_padding_id_of_zero_is_used() -> None:
    tokenizer = train_bpe([" ".join(WORDS)] * 3, 36)
    size = tokenizer.get_vocab_size()
    config = preset(
        "transformer/tiny", source_vocab=size, target_vocab=size + 5, source_pad=0, pad=size + 4, start=size + 4, end=1,
        tie="none", width=8, encoder_layers=1, decoder_layers=1,
    )  # fmt: skip
    read = WordReader(reader(random_(transformer.Transformer(config)), tokenizer))
    texts = [Words(WORDS[:2], [True] * 2), Words(WORDS, [True] * 7)]
    assert len(list(read.maps(texts))) == 2  # the target's padding id is beyond the source's vocabulary
