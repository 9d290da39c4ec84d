"""Logit lens: the last layer gives the model's logits, and earlier layers equal a product computed by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import entropy, rankdata
from tokenizers import Tokenizer
from torch import Tensor

from manyheads import cli, directory
from manyheads.analysis.lens import EMBEDDING, layer_states
from manyheads.analysis.lens.picture import LONGEST
from manyheads.data.text.tokenizers import train_byte_bpe, train_wordpiece
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.seq2seq_rnn import Seq2SeqRNN, Seq2SeqRNNConfig
from manyheads.models.universal import UniversalSequence, UniversalSequenceConfig
from manyheads.tasks.loading import load
from manyheads.tasks.translation.decoding import never_written
from tests.support import reference

TEXTS = ["to be or not to be", "dogs bark, unaffably, and often.", "a man is here"] * 5
SMALL: dict[str, Any] = {"width": 8, "heads": 2, "max_positions": 20}


def saved(path: Path, model: Any, tokenizer: Tokenizer) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # far from what they begin as: layers differ, norms are no identities
            parameter.add_(0.3 * torch.randn_like(parameter))
    directory.save(path, model, tokenizer)
    return load(path)


@pytest.fixture(scope="module", params=["pre", "post"])
def writer(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    tokenizer = train_byte_bpe(TEXTS, vocabulary=290)
    config = GPTConfig(vocab=tokenizer.get_vocab_size(), layers=3, norm=request.param, **SMALL)
    return saved(tmp_path_factory.mktemp("gpt"), GPT(config), tokenizer)


@pytest.fixture(scope="module", params=["masked_lm", "pretraining"])
def reader(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    tokenizer = train_wordpiece(TEXTS, 60)
    config = BertConfig(vocab=tokenizer.get_vocab_size(), layers=2, feed_forward=16, head=request.param, **SMALL)
    return saved(tmp_path_factory.mktemp("bert"), Bert(config), tokenizer)


@pytest.fixture(scope="module", params=["marian", "pegasus"])
def translator(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("translator")
    directory.save(path, reference.ours(request.param, decoder_layers=3), reference.tokenizer())
    return load(path)


def likeliest(logits: Tensor, tokenizer: Tokenizer, top: int) -> tuple[list[list[str]], Tensor]:
    chances, ids = logits.float().softmax(-1).topk(top)
    return [[(tokenizer.id_to_token(each) or "").removeprefix("##") for each in row] for row in ids.tolist()], chances


@torch.no_grad()
def test_the_lens_of_a_language_models_last_layer_equals_its_prediction(writer: Any) -> None:
    lens = writer.lens("to be or", top=20)
    ids = writer.tokenizer.encode("to be or").ids
    logits = writer.model(torch.tensor([ids]))[0]
    np.testing.assert_allclose(lens.probabilities[-1], logits.softmax(-1).topk(20).values, rtol=1e-5)
    assert lens.layers == (EMBEDDING, 0, 1, 2)
    assert lens.probabilities.shape == (4, len(ids), 20)
    assert "".join(lens.tokens).replace("␣", "") == "tobeor"
    named = [writer.tokenizer.decode([each]).strip() for each in logits.topk(20).indices.flatten().tolist()]
    pairs = [
        (ours, theirs)
        for ours, theirs in zip(np.ravel(lens.words[-1]), named, strict=True)
        if theirs.isprintable() and theirs and "�" not in theirs  # a byte alone is named otherwise
    ]
    assert len(pairs) >= 10  # of 60 or more
    assert all(ours == theirs for ours, theirs in pairs)


@torch.no_grad()
def test_each_layer_is_projected_by_norm_and_matrix(writer: Any) -> None:
    """By hand, with PyTorch's functions alone, from states that hooks see."""
    model, tokens = writer.model, torch.tensor([[1, 5, 9, 2, 7]])
    states: list[Tensor] = []
    blocks = model.decoder.blocks
    hooks = [blocks[0].register_forward_pre_hook(lambda _, given: states.append(given[0]))]
    hooks += [block.register_forward_hook(lambda _, __, output: states.append(output)) for block in blocks]
    plain = model(tokens)
    for hook in hooks:
        hook.remove()
    found = layer_states(model, "decoder", model.project, tokens)
    layers = [found.logits(state) for state in found.states]
    assert len(layers) == len(states) == 4
    for logits, state in zip(layers, states, strict=True):
        if (norm := model.decoder.norm) is not None:
            state = F.layer_norm(state, (8,), norm.weight, norm.bias, norm.eps)
        torch.testing.assert_close(logits, state @ model.embedding.weight.T)
    torch.testing.assert_close(layers[-1], plain)
    assert not torch.allclose(layers[-2], plain)


@torch.no_grad()
def test_the_lens_of_berts_last_layer_equals_its_prediction(reader: Any) -> None:
    text = "dogs [MASK], and often"
    lens = reader.lens(text, top=3)
    ids = reader._encode(text, 0)  # as for `fill`
    output = reader.model(torch.tensor([ids]))
    words, chances = likeliest((output if isinstance(output, Tensor) else output[0])[0], reader.tokenizer, 3)
    np.testing.assert_allclose(lens.probabilities[-1], chances, rtol=1e-5)
    assert [[each.removeprefix("##") for each in row] for row in lens.words[-1]] == words
    at = lens.tokens.index("[MASK]")
    assert ids[at] == reader.special.mask
    (fill,) = reader.fill([text], top=1)
    assert fill[0].probability == pytest.approx(lens.probabilities[-1, at, 0], rel=1e-4)


@torch.no_grad()
def test_the_lens_of_a_translators_last_layer_equals_its_prediction(translator: Any) -> None:
    source, target = "two dogs", "zwei Hunde"
    lens = translator.lens(source, target, top=2)
    given, written = translator.tokenizer.encode(source).ids, translator.target_tokenizer.encode(target).ids
    before = [translator.model.config.start, *written[:-1]]
    logits = translator.model(torch.tensor([given]), None, torch.tensor([before]))[0]
    np.testing.assert_allclose(lens.probabilities[-1], logits.softmax(-1).topk(2).values, rtol=1e-5)
    assert lens.layers == (EMBEDDING, 0, 1, 2)
    assert len(lens.tokens) == len(written)
    assert lens.tokens[-1] == "</s>"
    score = sum(np.log(float(logits[at].softmax(-1)[each])) for at, each in enumerate(written))
    (scored,) = translator.score([source], [target])
    never = logits.softmax(-1)[:, never_written(translator.model)].sum(-1)  # what decoding leaves out
    assert scored.log_probability == pytest.approx(score - float((1 - never).log().sum()), abs=1e-3)


@torch.no_grad()
def test_ranks_and_divergences_are_those_of_scipy(writer: Any) -> None:
    lens = writer.lens("to be or", top=1)
    found = layer_states(writer.model, "decoder", writer.model.project, torch.tensor([writer.encode("to be or")]))
    p = np.stack([found.logits(state)[0].double().softmax(-1).numpy() for state in found.states])  # (L, T, V)
    np.testing.assert_allclose(lens.kl, entropy(np.broadcast_to(p[-1], p.shape), p, axis=-1), atol=1e-5)
    ranks = rankdata(-p, "min", axis=-1)
    for at, answer in enumerate(p[-1].argmax(-1)):
        np.testing.assert_array_equal(lens.ranks[:, at], ranks[:, at, answer])
    assert lens.ranks[-1].tolist() == [1] * len(lens.tokens)
    assert (lens.ranks[0] > 1).any()
    assert (lens.kl[:-1] > 0).all()


def test_models_without_a_stack_are_refused(tmp_path: Path) -> None:
    tokenizer = train_byte_bpe(TEXTS, vocabulary=290)
    size = tokenizer.get_vocab_size()
    universal = UniversalSequenceConfig(vocab=size, head="decoder", feed_forward=8, **SMALL)
    lstm = Seq2SeqRNNConfig(source_vocab=size, target_vocab=size, pad=0, end=1, start=0, width=8)
    for name, model in (("universal", UniversalSequence(universal)), ("lstm", Seq2SeqRNN(lstm))):
        predictor = saved(tmp_path / name, model, tokenizer)
        with pytest.raises(ValueError, match="the logit lens needs a stack of layers: .* has none"):
            predictor.lens(*(("to be", "or") if name == "lstm" else ("to be",)))


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main(["lens", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_the_command_prints_a_table_or_json_and_draws(
    translator: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = (translator.path, "two dogs", "--target", "zwei Hunde")
    lens = translator.lens("two dogs", "zwei Hunde")
    status, out, error = shown(capsys, *chosen, "--out", tmp_path / "lens.svg")
    assert (status, error) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == ["embedding", "layer", "0", "layer", "1", "layer", "2"]
    assert [row.split()[0] for row in rows] == list(lens.tokens)
    assert rows[0].endswith(f"{lens.words[-1][0][0]} {lens.probabilities[-1, 0, 0]:.0%}")
    assert b"<svg" in (tmp_path / "lens.svg").read_bytes()
    assert shown(capsys, *chosen, "--out", tmp_path / "lens.html")[0] == 0
    status, out, _ = shown(capsys, *chosen, "--json")
    document = json.loads(out)
    assert document["tokens"] == list(lens.tokens)
    assert [layer["layer"] for layer in document["layers"]] == [EMBEDDING, 0, 1, 2]
    first = document["layers"][-1]["positions"][0]
    assert [each["word"] for each in first] == lens.words[-1][0]
    assert [each["probability"] for each in first] == pytest.approx(lens.probabilities[-1, 0].tolist())
    assert [layer["ranks"] for layer in document["layers"]] == lens.ranks.tolist()
    assert document["answers"] == [ranked[0] for ranked in lens.words[-1]]


def test_impossible_requests_are_reported_in_one_line(
    writer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        ((writer.path, "to be", "--target", "x"), "--target applies to translators, but"),
        ((writer.path, "to be", "--pair", "x"), "--pair applies to models that read pairs of texts, but"),
        ((writer.path, "to be", "--out", "lens.txt"), "a name that ends in .html, .png, .svg or .pdf"),
        ((writer.path,), "expected either a text (or an image), or --tune TEXTS to train a tuned lens"),
        ((writer.path, "to be", "--tune", "texts"), "expected either a text (or an image), or --tune"),
        ((writer.path, "--tune", "texts"), "--tune needs --out FILE.safetensors"),
        ((writer.path, "--tune", "texts", "--out", "a.html"), "expected a name that ends in .safetensors"),
        ((writer.path, ""), "the text is empty after tokenization"),
        ((writer.path, "xyz" * 20), "the model takes 20: shorten it, or cut it with truncate (--truncate)"),
    ):
        status, out, error = shown(capsys, *arguments)
        assert (status, out, error.count("\n")) == (2, "", 1)
        assert message in error
    assert shown(capsys, writer.path, "xyz" * 20, "--truncate")[0] == 0
    with pytest.raises(ValueError, match="top is 0: expected 1 to 1000"):
        writer.lens("to be", top=0)
    lens = writer.lens("to be")
    long = type(lens)(**(vars(lens) | {"tokens": ("a",) * (LONGEST + 1)}))
    with pytest.raises(ValueError, match=f"{LONGEST + 1} tokens are too many for a picture"):
        long.draw(tmp_path / "lens.png")
