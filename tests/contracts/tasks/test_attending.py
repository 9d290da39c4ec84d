"""The `attend` command for every predictor, and its tokens and words."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from manyheads import cli, directory
from manyheads.analysis.maps.sides import SPECIAL
from manyheads.core.recording import record
from manyheads.data.text.tokenizers import train_bpe, train_byte_bpe, train_character, train_unigram
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.presets import preset
from manyheads.models.resnet import ResNet, ResNetConfig
from manyheads.models.vit import ViT
from manyheads.tasks import tokenized_text
from manyheads.tasks.loading import load
from manyheads.tasks.tokenized_text import tokenized, tokenized_ids
from tests.support import reference


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("translator")
    directory.save(path, reference.ours("marian"), reference.tokenizer())
    return load(path)


@pytest.fixture(scope="module")
def wordpiece(minilm: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def bert(path: Path, wordpiece: Tokenizer, **settings: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": 8, "layers": 2, "heads": 2, "feed_forward": 8, "max_positions": 64}
    model = Bert(BertConfig(**(sizes | settings)))
    directory.save(path, model, wordpiece)
    return load(path)


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(["to be or not"] * 9, trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet))
    return tokenizer


def characters() -> Tokenizer:
    return Tokenizer(models.BPE({each: i for i, each in enumerate("abc de\n")}, []))


def test_a_translation_has_three_axes_with_target_rows(translator: Any) -> None:
    source, target = "two dogs", "zwei Hunde"
    maps = translator.attend(source, target)
    written, given = translator.target_tokenizer.encode(target), translator.tokenizer.encode(source)
    assert {axis: layers[0].weights.shape for axis, layers in maps.axes.items()} == {
        "encoder": (1, 3, len(given.ids), len(given.ids)),
        "decoder": (1, 2, len(written.ids), len(written.ids)),
        "cross": (1, 2, len(written.ids), len(given.ids)),
    }
    cross, decoder = maps["cross"][0], maps["decoder"][0]
    assert "".join(cross.queries.tokens[:-1]) == "▁zweiHunde"  # the mark of a word's beginning is a token here
    assert cross.queries.tokens[-1] == written.tokens[-1]
    assert decoder.keys.tokens == ("[start]", *cross.queries.tokens[:-1])
    assert "".join(cross.keys.tokens[:-1]) == "twodogs"
    assert maps.words()["cross"][0].queries.tokens[:2] == ("▁zwei", "Hunde")
    assert maps.stepwise == ("decoder", "cross")
    assert np.triu(decoder.weights[0, 0], 1).max() == 0


def test_rows_equal_step_by_step_decoding(translator: Any) -> None:
    """Recorded while the same tokens are written one by one, from the cache."""
    model, target = translator.model, "zwei Hunde"
    maps = translator.attend("two dogs", target, axis="cross")
    ids = translator.target_tokenizer.encode(target).ids
    with torch.no_grad():
        cache = model.start(torch.tensor([translator.tokenizer.encode("two dogs").ids]), None, len(ids))
        with record(model, "decoder.*.cross") as calls:
            for token in [model.config.start, *ids[:-1]]:
                model.step(torch.tensor([[token]]), cache)
    for layer in maps["cross"]:
        np.testing.assert_allclose(layer.weights, torch.cat(calls[layer.name], 2).numpy(), atol=1e-5)


def test_a_translator_translates_if_no_target_is_given(translator: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        translator, "translate", lambda text, truncate: {"two dogs": "zwei Hunde"}[text]
    )  # new weights write for ever
    assert translator.attend("two dogs").title == "two dogs → zwei Hunde"


def test_overlong_texts_are_truncated_on_request(translator: Any, monkeypatch: Any) -> None:
    room = translator.model.config.max_positions
    long = "two dogs " * room
    monkeypatch.setattr(translator, "translate", lambda text, truncate: "zwei Hunde")
    for arguments in ((long,), (long, "zwei"), ("two", long)):
        with pytest.raises(ValueError, match=r"the (source|target) has .* tokens, the model takes .* \(--truncate\)"):
            translator.attend(*arguments)
        cross = translator.attend(*arguments, truncate=True)["cross"][0]
        assert max(len(cross.queries), len(cross.keys)) == room
    assert translator.attend(long, truncate=True)["cross"][0].keys.tokens[-1] == "</s>"


@pytest.mark.parametrize(
    "settings",
    [
        {"head": "none"}, {"head": "pooler"}, {"head": "masked_lm"}, {"head": "pretraining"}, {"head": "next_sentence"},
        {"head": "sequence", "labels": ("a", "b")}, {"head": "token", "labels": ("O", "B-X")}, {"head": "question"},
        {"head": "choice"},
    ],
    ids=lambda each: each["head"],
)  # fmt: skip
def test_every_head_of_bert_can_be_opened(tmp_path: Path, wordpiece: Tokenizer, settings: Any) -> None:
    predictor = bert(tmp_path, wordpiece, **settings)
    text, pair = "An unaffable dog.", "It barks"
    maps = predictor.attend(text, pair)
    encoding = wordpiece.encode(text, pair)
    states = torch.tensor([encoding.ids]), None, torch.tensor([encoding.type_ids])
    with torch.no_grad(), record(predictor.model, 1) as expected:
        predictor.model.encode(*states)
    np.testing.assert_allclose(maps["self"][1].weights, next(iter(expected.values()))[0], atol=1e-6)
    merged = maps.words()["self"][0].keys.tokens
    assert merged == ("[CLS]", "An", "unaffable", "dog", ".", "[SEP]", "It", "barks", "[SEP]")
    assert maps["self"][0].keys.words[0] == SPECIAL


def test_a_prediction_of_masked_words_sees_the_mask(tmp_path: Path, wordpiece: Tokenizer) -> None:
    predictor = bert(tmp_path, wordpiece, head="masked_lm")
    side = predictor.attend("A [MASK] barks unaffably")["self"][0].keys
    assert side.tokens[:4] == ("[CLS]", "A", "[MASK]", "bark")
    assert side.tokens[-1] == "[SEP]"
    assert len(set(side.words[1:-1])) == 4
    found = predictor._tokenized("A [MASK] barks", None, False)
    assert found.ids == predictor._encode("A [MASK] barks", 1)


def test_a_language_model_reads_bytes_as_characters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = byte_level()
    config = GPTConfig(vocab=tokenizer.get_vocab_size(), width=8, layers=1, heads=2, max_positions=20)
    directory.save(tmp_path, GPT(config), tokenizer)
    generator = load(tmp_path)
    maps = generator.attend("to bé\nor")
    (layer,) = maps["self"]
    assert maps.stepwise == ("self",)
    assert "⏎" in layer.keys.tokens
    assert layer.keys.words == tuple(sorted(layer.keys.words))
    assert len(set(layer.keys.words)) == 5  # to, the space, bé, the new line, or
    longer = generator.attend("to be", max_tokens=3)
    assert len(longer["self"][0].keys) == len(tokenizer.encode("to be").ids) + 3
    with pytest.raises(ValueError, match=r"the text has 2\d tokens, the model takes 20: shorten it"):
        generator.attend("xyzxyzxyzxyzxyzxyzxyzxyz")
    count = len(tokenizer.encode("to be").ids)
    with pytest.raises(
        ValueError, match=rf"is 9,999: expected at most {20 - count}. The text has {count} tokens, the m"
    ):
        generator.attend("to be", max_tokens=9999)
    assert len(generator.attend("to be", max_tokens=9999, truncate=True)["self"][0].keys) == 20
    assert len(generator.attend("to be", max_tokens=20 - count)["self"][0].keys) == 20
    assert len(generator.attend("xyzxyzxyzxyzxyzxyzxyzxyz", truncate=True)["self"][0].keys) == 20


TRAINERS: list[Callable[[list[str]], Tokenizer]] = [
    train_character, partial(train_byte_bpe, vocabulary=300), partial(train_bpe, vocabulary=60),
    partial(train_unigram, vocabulary=33),
]  # fmt: skip


@pytest.mark.parametrize("train", TRAINERS)
def test_ids_are_shown_with_their_text(train: Callable[[list[str]], Tokenizer]) -> None:
    tokenizer = train(["to be or not to be", "dogs bark, unaffably, and often.", "a man\nis here bé 😀x"] * 5)
    for text in ("to bé\nor not", "dogs bark 😀x often.", "\n\nor"):
        expected = tokenized(tokenizer, text, special=False)
        assert tokenized_ids(tokenizer, expected.ids) == expected


def test_unreachable_tokens_are_shown_as_written() -> None:
    tokenizer = byte_level()
    whole = tokenizer.encode("to", add_special_tokens=False).ids
    ids = [*tokenizer.encode("t").ids, *tokenizer.encode("o").ids]
    assert len(whole) < len(ids)  # else the text would give them again
    found = tokenized_ids(tokenizer, ids)
    assert (found.ids, found.side.tokens) == (ids, ("t", "o"))
    assert len(set(found.side.words)) == 1


def test_blanks_separate_words_if_the_tokenizer_does_not() -> None:
    side = tokenized(characters(), "ab cd\nde", special=False).side
    assert side.tokens == ("a", "b", "␣", "c", "d", "⏎", "d", "e")
    assert side.words == (0, 0, 1, 2, 2, 3, 4, 4)


def test_a_text_without_tokens_is_reported(tmp_path: Path, wordpiece: Tokenizer) -> None:
    predictor = bert(tmp_path, wordpiece)
    with pytest.raises(ValueError, match="the text is empty after tokenization"):
        predictor.attend("\u200b\u0000 ")
    with pytest.raises(ValueError, match="the second text is empty after tokenization"):
        predictor.attend("a dog", " ")
    with pytest.raises(
        ValueError, match="the second text contains half a character .* at position 1; give valid UTF-8"
    ):
        predictor.attend("a dog", "\ud800")


def test_half_characters_are_reported(translator: Any) -> None:
    for target in (None, "ein"):
        with pytest.raises(ValueError, match="text.* contains half a character .* at position 2"):
            translator.attend("a\ud800", target)
    with pytest.raises(ValueError, match="the target contains half a character"):
        translator.attend("a", "\ud800")
    with pytest.raises(ValueError, match="text 2 contains half a character"):
        translator.translate(["a", "\ud800"])
    with pytest.raises(ValueError, match="target 1 contains half a character"):
        translator.score(["a"], ["\ud800"])


def png(path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_an_image_has_maps(tmp_path: Path) -> None:
    directory.save(tmp_path / "vit", ViT(preset("vit/2-8", layers=1)))
    maps = load(tmp_path / "vit").attend(png(tmp_path / "a.png"))
    assert maps["self"][0].weights.shape == (1, 4, 17, 17)
    assert maps.picture is not None
    np.testing.assert_array_equal(maps.picture, np.asarray(Image.open(tmp_path / "a.png")))
    assert maps.title == "a.png"


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main(["attend", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_the_command_writes_pages_pictures_and_arrays(
    translator: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, picture, arrays = (tmp_path / f"map.{suffix}" for suffix in ("html", "svg", "npz"))
    assert shown(capsys, translator.path, "two dogs", "a cat", "--out", page) == (0, f"{page}\n", "")
    assert page.read_text(encoding="utf-8").count('"maps":') == 2
    assert shown(capsys, translator.path, "two dogs", "--against", translator.path, "--out", page)[0] == 0
    assert shown(capsys, translator.path, "two dogs", "--lines", "--layers", 0, "--out", picture)[0] == 0
    assert b"<svg" in picture.read_bytes()
    chosen = ("--axis", "cross", "--heads=-1,0", "--target", "zwei", "--words")
    assert shown(capsys, translator.path, "two dogs", *chosen, "--out", arrays)[0] == 0
    with np.load(io.BytesIO(arrays.read_bytes())) as found:
        assert found["cross/0"].shape == (1, 2, 2, 3)  # zwei and the end; two, dogs and the end
        assert found["cross/0/heads"].tolist() == [1, 0]
        assert found["cross/0/queries"].tolist()[0] == "▁zwei"
        assert "encoder/0" not in found
        assert "cross/0/calculation/query" not in found
    assert shown(capsys, translator.path, "two dogs", *chosen[:5], "--calculation", "--out", arrays)[0] == 0
    with np.load(io.BytesIO(arrays.read_bytes())) as found:
        assert found["cross/0/calculation/value"].shape == (2, len(found["cross/0/keys"]), 12)
    assert shown(capsys, translator.path, "two dogs", *chosen[:5], "--calculation", "--out", page)[0] == 0
    assert '"calculations":"' in page.read_text(encoding="utf-8")
    assert shown(capsys, translator.path, "two dogs", "--target", "", "--axis", "cross", "--out", arrays)[0] == 0
    with np.load(io.BytesIO(arrays.read_bytes())) as found:
        assert found["cross/0/queries"].tolist() == ["</s>"]


def test_impossible_requests_are_reported_in_one_line(
    translator: Any, wordpiece: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert(tmp_path / "bert", wordpiece)
    bert(tmp_path / "reader", wordpiece, head="question")
    resnet = ResNet(ResNetConfig(depths=(1,), widths=(8,), labels=("a", "b"), channels=1))
    directory.save(tmp_path / "resnet", resnet, preprocessing={"image_mean": [0.5], "image_std": [0.5], "size": 8})
    assert load(tmp_path / "resnet").supported == ("classify", "embed", "explain", "evaluate")
    image = png(tmp_path / "a.png")
    for arguments, message in (
        ((translator.path, "a", "--layers", "9"), "encoder layer 9 does not exist: valid are 0 to 1"),
        ((translator.path, "a", "--heads", "2"), "decoder.blocks.0.attention has no head 2: expected 0 to 1"),
        ((translator.path, "a", "--heads", "two"), "expected numbers such as 0,5, found 'two'"),
        ((translator.path, "a", "--axis", "self"), "has no 'self' attention: it has encoder, decoder, cross"),
        ((translator.path, "a", "--pair", "b"), "--pair applies to models that read pairs of texts"),
        ((translator.path, "a", "--out", "map.gif"), "--out map.gif: expected a file that ends in .html, .npz"),
        ((translator.path, "a", "--out", "none/map.png"), "directory none not found: create it first"),
        ((translator.path, "a", "b", "--out", "map.png"), "two inputs are compared on a page"),
        ((translator.path, "a", "b", "c"), "found 3 inputs: a page compares two"),
        (
            (translator.path, "a", "--lines"),
            "--lines applies to pictures: expected --out FILE.png, FILE.svg or FILE.pdf",
        ),
        ((translator.path, "a", "--lines", "--out", "a.npz"), "--lines applies to pictures"),
        (
            (translator.path, "a", "--first", "1", "--out", "a.npz"),
            "--first applies to pages: expected --out FILE.html",
        ),
        ((translator.path, "a", "--target", "b", "--first", "9999"), "cannot begin with token 9,999: all "),
        (
            (translator.path, "a", "--calculation", "--out", "a.png"),
            "--calculation applies to pages and arrays: expected",
        ),
        ((translator.path, "a", "--calculation", "--words"), "--calculation shows tokens, --words merges them"),
        ((tmp_path / "resnet", image, "--calculation"), "--calculation applies to models that read texts, but"),
        ((tmp_path / "bert", "a dog", "--pair", ""), "the second text is empty after tokenization"),
        (
            (tmp_path / "reader", "a dog"),
            "expected a question with its context: give the context as pair (--pair TEXT)",
        ),
        ((translator.path, " "), "the text is empty after tokenization"),
        ((tmp_path / "resnet", image), "resnet has no attention layers"),
    ):
        status, out, error = shown(capsys, *arguments)
        assert (status, out, error.count("\n")) == (2, "", 1)
        assert message in error
    assert not Path("attention.html").exists()


@pytest.mark.parametrize(
    ("piece", "token", "shown"), [("", "▁", "␣"), (" ", "▁", "␣"), ("", "[CLS]", "[CLS]"), (" a", "▁a", "a")]
)
def test_a_space_has_one_symbol(piece: str, token: str, shown: str) -> None:
    assert tokenized_text._shown(piece, token) == shown
