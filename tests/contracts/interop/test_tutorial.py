"""Loading of a state_dict from the PyTorch tutorial's translator, built from torch.nn.Transformer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import manyheads
from manyheads import cli, directory, export
from manyheads.interop.tutorial import read_vocabulary, translator
from tests.support.porting import randomize

SOURCE = ["<unk>", "<pad>", "<bos>", "<eos>", ".", "Ein", "Mann", "T-Shirt", "im", "lacht", "blauen"]
TARGET = [*SOURCE[:5], "A", "man", "t", "-", "shirt", "laughs", "in", "a", "blue", "do", "n't"]
PAD = 1


class Embedded(nn.Module):
    """Token embedding, under the name that the tutorial gives the matrix."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)


class Located(nn.Module):
    """Sinusoidal positions: alternating sines and cosines in float32, as a buffer of the state_dict."""

    pos_embedding: Tensor

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        rates = torch.exp(-torch.arange(0, width, 2) * math.log(10000) / width)
        angles = torch.arange(length)[:, None] * rates
        self.register_buffer("pos_embedding", torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, None])


class Seq2SeqTransformer(nn.Module):
    """The tutorial's class; tokens are (T, B), padding is masked everywhere."""

    def __init__(self, layers: tuple[int, int], width: int, heads: int, hidden: int, length: int = 5000) -> None:
        super().__init__()
        self.transformer = nn.Transformer(width, heads, *layers, hidden, 0.1)
        self.generator = nn.Linear(width, len(TARGET))
        self.src_tok_emb, self.tgt_tok_emb = Embedded(len(SOURCE), width), Embedded(len(TARGET), width)
        self.positional_encoding = Located(width, length)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        def embed(table: Embedded, tokens: Tensor) -> Tensor:
            vectors = table.embedding(tokens) * math.sqrt(table.embedding.embedding_dim)
            return vectors + self.positional_encoding.pos_embedding[: len(tokens)]

        padding = (source == PAD).T
        hidden = self.transformer(
            embed(self.src_tok_emb, source), embed(self.tgt_tok_emb, target),
            tgt_mask=torch.ones(len(target), len(target)).triu(1).bool(), src_key_padding_mask=padding,
            tgt_key_padding_mask=(target == PAD).T, memory_key_padding_mask=padding,
        )  # fmt: skip
        return self.generator(hidden)


def theirs(layers: tuple[int, int] = (3, 2), width: int = 32, heads: int = 8, **more: Any) -> Seq2SeqTransformer:
    torch.manual_seed(0)
    model = Seq2SeqTransformer(layers, width, heads, 24, **more).eval()
    randomize(model)
    return model


def questions() -> tuple[Tensor, Tensor, Tensor]:
    """Return sources (B, Ts) with real lengths (B,), and targets (B, Tt)."""
    draw = torch.Generator().manual_seed(1)
    source, target = (torch.randint(2, size, (3, length), generator=draw) for size, length in ((11, 7), (16, 6)))
    lengths = torch.tensor([7, 3, 5])
    source[torch.arange(7) >= lengths[:, None]] = PAD
    return source, lengths, target


@pytest.mark.parametrize("heads", [8, 2])
@pytest.mark.parametrize("layers", [(3, 2), (1, 11)])
def test_logits_are_equal(heads: int, layers: tuple[int, int]) -> None:
    other = theirs(layers, heads=heads)
    model = translator(other.state_dict(), heads=heads)
    source, lengths, target = questions()
    with torch.no_grad():
        expected = other(source.T, target.T).transpose(0, 1)
        logits = model(source, lengths, target)
    assert expected.std() > 0.1
    assert (logits - expected).abs().max() < 1e-6 * max(1, float(expected.abs().max()))
    c = model.config
    assert (c.encoder_layers, c.decoder_layers, c.max_positions) == (*layers, 5000)
    assert (c.pad, c.source_pad, c.start, c.end) == (1, 1, 2, 3)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("form", ["list", "mapping", "lines"])
def test_a_state_dict_becomes_a_translator(
    tmp_path: Path, suffix: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = theirs()
    file = tmp_path / f"model{suffix}"
    (torch.save if suffix == ".pt" else save_file)({n: t.clone() for n, t in other.state_dict().items()}, file)
    names = []
    for name, words in (("de", SOURCE), ("en", TARGET)):
        path = tmp_path / (f"{name}.txt" if form == "lines" else f"{name}.json")
        content = {word: i for i, word in reversed([*enumerate(words)])} if form == "mapping" else words
        path.write_text("\n".join(words) + "\n" if form == "lines" else json.dumps(content), encoding="utf-8")
        names.append(str(path))
    out = tmp_path / "out"
    assert cli.main(["convert", str(file), str(out), "--vocabularies", ",".join(names), "--heads", "8"]) == 0
    told = capsys.readouterr().err
    assert "3 + 2 layers of width 32; ReLU and norms after each sum, as in the tutorial" in told
    model = manyheads.load(out)
    assert model.tokenizer.encode("Ein Mann im T-Shirt.").ids == [2, 5, 6, 8, 7, 4, 3]
    assert model.target_tokenizer.decode([5, 6, 11, 12, 7, 8, 9, 14, 15, 4]) == "A man in a t-shirt don't."
    written = [2]
    while written[-1] != 3 and len(written) < 57:  # the tutorial's greedy decoding, but for what is never written
        with torch.no_grad():
            logits = other(torch.tensor([[2, 5, 6, 9, 4, 3]]).T, torch.tensor([written]).T)[-1, 0]
        logits[[1, 2]] = -torch.inf
        written.append(int(logits.argmax()))
    expected = model.target_tokenizer.decode([i for i in written[1:] if i != 3])
    assert model.translate("Ein Mann lacht.", beam=1) == expected
    assert model.attend("Ein Mann lacht.", "A man laughs.").axes["cross"]
    with pytest.raises(
        ValueError, match="CTranslate2: expected a Marian or Pegasus model, .*: positions is 'interleaved'; only 'conc"
    ):
        export.export(model.path, tmp_path / "other", "ctranslate2")
    with pytest.raises(ValueError, match="transformers cannot open this model .it has two tokenizer files"):
        export.export(model.path, tmp_path / "other", "hf")


def test_without_vocabularies_a_converted_model_reads_no_text(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    torch.save(theirs().state_dict(), tmp_path / "model.pt")
    export.convert(tmp_path / "model.pt", tmp_path / "out")
    assert "8 heads (--heads), ReLU" in (told := log.text)
    assert "without --vocabularies it translates no text" in told
    with pytest.raises(ValueError, match="so text cannot be translated"):
        manyheads.load(tmp_path / "out")


def without(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: nn.Transformer(16, 2, 1, 1, 8).state_dict(),
            r"model\.pt: not a state_dict of the PyTorch tutorial's Seq2SeqTransformer: expected src_tok_emb\.embedding"
            r"\.weight, .*; found encoder\.layers\.0\.self_attn\.in_proj_weight, .* and \d+ more$",
        ),
        (without("generator.bias"), r"not a state_dict .* missing: generator\.bias \(16,\)"),
        (lambda t: {**t, "extra.weight": torch.ones(3)}, r"not a state_dict .* unexpected: extra\.weight \(3,\)"),
        (
            lambda t: {**t, "src_tok_emb.embedding.weight": torch.ones(11, 40)},
            "not a state_dict .* misshapen: tgt_tok_emb",
        ),
        (
            lambda t: {**t, "positional_encoding.pos_embedding": torch.ones(50, 1, 32)},
            r"not a state_dict .* positional_encoding\.pos_embedding differs from its sines",
        ),
        (
            lambda t: {"epoch": 3, "model_state_dict": t},
            r"a dict of names and tensors, as from .*, found a dict of epoch, model_state_dict",
        ),
        (lambda t: {}, "found nothing"),
        (lambda t: {3: t["generator.bias"]}, "a dict of names and tensors, .* found a dict of 3"),
        (
            lambda t: {**t, "generator.weight": t["generator.weight"].to_sparse()},
            r"model\.pt: generator\.weight is sparse; expected dense tensors",
        ),
        (
            lambda t: {**t, "generator.weight": t["generator.weight"].to("meta")},
            r"model\.pt: generator\.weight is without content",
        ),
        (
            lambda t: {**t, "generator.weight": t["generator.weight"] * torch.nan},
            r"model\.pt: generator\.weight not finite: the file is damaged, or training diverged",
        ),
        (
            lambda t: {("module." if name == "generator.bias" else "") + name: tensor for name, tensor in t.items()},
            r"missing: generator\.bias \(16,\); unexpected: module\.generator\.bias",
        ),
    ],
)
def test_another_class_is_reported_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    torch.save(change(dict(theirs().state_dict())), tmp_path / "model.pt")
    with pytest.raises(ValueError, match=message) as caught:
        export.convert(tmp_path / "model.pt", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_wrapped_models_are_removed_and_reported(
    tmp_path: Path, log: pytest.LogCaptureFixture, prefix: str
) -> None:
    state = theirs().state_dict()
    torch.save({f"{prefix}{name}": tensor for name, tensor in state.items()}, tmp_path / "model.pt")
    export.convert(tmp_path / "model.pt", tmp_path / "out")
    assert f"removed the prefix '{prefix}' of a wrapped model" in log.text
    converted = directory.load(tmp_path / "out").model
    assert torch.equal(converted.output.weight, state["generator.weight"])


def test_a_whole_pickled_model_is_not_opened(tmp_path: Path) -> None:
    torch.save(theirs(), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="expected plain weights; the file is damaged or contains other objects"):
        export.convert(tmp_path / "model.pt", tmp_path / "out")


def test_inconsistent_options_are_refused(tmp_path: Path) -> None:
    torch.save(theirs().state_dict(), tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"heads \(--heads\) is 5: expected an integer that divides width \(32\)"):
        export.convert(tmp_path / "model.pt", tmp_path / "out", heads=5)
    for name, words in (("de", SOURCE), ("en", TARGET[:-1])):
        (tmp_path / f"{name}.json").write_text(json.dumps(words))
    files = (tmp_path / "de.json", tmp_path / "en.json")
    with pytest.raises(ValueError, match=r"en\.json: 15 words, but the model has 16"):
        export.convert(tmp_path / "model.pt", tmp_path / "out", vocabularies=files)
    with pytest.raises(ValueError, match="--languages without --vocabularies"):
        export.convert(tmp_path / "model.pt", tmp_path / "out", languages=("fr", "en"))
    with pytest.raises(ValueError, match="heads: these options apply to a state_dict file, but this is a directory"):
        export.convert(tmp_path, tmp_path / "out", heads=5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "expected distinct words"),
        ('["<unk>", "<pad>", "<bos>", "<bos>"]', "expected distinct words"),
        ('{"<unk>": 0, "<pad>": 5}', "expected distinct words"),
        ('["<unk>", "<pad>", "a"]', "expected the tutorial's special tokens, found no <bos>, <eos> among 3 words"),
        ("[", "expected JSON"),
        ('"words"', "expected distinct words"),
    ],
)
def test_files_without_a_vocabulary_are_reported(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "words.json").write_text(content)
    with pytest.raises(ValueError, match=rf"words\.json: {message}"):
        read_vocabulary(tmp_path / "words.json")
    with pytest.raises(ValueError, match="absent.json: failed to read: No such file"):
        read_vocabulary(tmp_path / "absent.json")
