"""RoBERTa and DistilBERT from transformers' directories: mask filling, attention maps, probing and fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, processors

import manyheads
from manyheads import cli, directory
from manyheads.data.text.tokenizers import train_byte_bpe, train_wordpiece
from manyheads.errors import UserError
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.tasks.train import train
from tests.support.reference import randomize

NAMES, PLACES = ["Ann", "Bob", "Cid", "Dot"], ["Rome", "Oslo", "York", "Bonn"]
TEXTS = [f"{name} went to {place}." for name in NAMES for place in PLACES]
SMALL: dict[str, Any] = {"threads": 1, "batch_tokens": 256, "max_length": 24, "training.epochs": 2,
                         "training.checkpoint_every": 50}  # fmt: skip
FAMILIES = ("roberta", "distilbert")


def byte_level() -> Tokenizer:
    """Return a tokenizer as in roberta-base's tokenizer.json: a mask token includes the blank before it."""
    tokenizer = train_byte_bpe(TEXTS * 3, 290)
    tokenizer.encode_special_tokens = False
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)])
    ids: dict[str, Any] = {token: tokenizer.token_to_id(token) for token in ("<s>", "</s>")}
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), trim_offsets=True, add_prefix_space=False
    )
    return tokenizer


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a masked language model that transformers wrote."""
    path = tmp_path_factory.mktemp(request.param) / "model"
    torch.manual_seed(0)
    if request.param == "roberta":
        tokenizer = byte_level()
        pad: Any = tokenizer.token_to_id("<pad>")
        config: Any = transformers.RobertaConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=pad + 1 + 40, type_vocab_size=1, pad_token_id=pad,
        )  # fmt: skip
        network: Any = transformers.RobertaForMaskedLM(config)
        tokens = {"pad_token": "<pad>", "mask_token": "<mask>", "unk_token": "<unk>", "cls_token": "<s>",
                  "sep_token": "</s>"}  # fmt: skip
    else:
        tokenizer = train_wordpiece(TEXTS * 3, 60)
        tokenizer.encode_special_tokens = False
        config = transformers.DistilBertConfig(
            vocab_size=tokenizer.get_vocab_size(), dim=16, n_layers=2, n_heads=2, hidden_dim=24,
            max_position_embeddings=40,
        )  # fmt: skip
        network = transformers.DistilBertForMaskedLM(config)
        tokens = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]", "cls_token": "[CLS]",
                  "sep_token": "[SEP]"}  # fmt: skip
    randomize(network, config.pad_token_id).save_pretrained(path)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(path)
    return path


def mask_of(model: Path) -> str:
    return "<mask>" if "roberta" in str(model) else "[MASK]"


@pytest.mark.filterwarnings("ignore:vocabulary=")
def test_filled_words_equal_the_pipeline(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = mask_of(model)
    filler, pipeline = manyheads.load(model), transformers.pipeline("fill-mask", str(model), top_k=4)
    for text in (f"Ann went to {mask}.", f"{mask} went to Rome.", f"Bob {mask} to Oslo."):
        expected: Any = pipeline(text)
        fills = filler.fill(text, top=4)
        assert [fill.probability for fill in fills] == pytest.approx([each["score"] for each in expected], abs=1e-5)
        assert [fill.token for fill in fills] == [each["token_str"].strip() for each in expected]
        if mask == "<mask>":
            assert [fill.text for fill in fills] == [each["sequence"].lstrip() for each in expected]
    assert cli.main(["fill", str(model), f"Ann {mask} to Rome.", "--top", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert cli.main(["fill", str(model), "Ann [HIDDEN]"]) == 2
    assert f"has no {mask}: write {mask}" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:vocabulary=")
def test_maps_equal_transformers(model: Path) -> None:
    text = "Ann went to Rome."
    maps = manyheads.load(model).attend(text)
    other = transformers.AutoModel.from_pretrained(model, attn_implementation="eager").eval()
    given = transformers.AutoTokenizer.from_pretrained(model)(text, return_tensors="pt")
    expected = other(**given, output_attentions=True).attentions
    for layer, attention in enumerate(expected):
        torch.testing.assert_close(torch.as_tensor(maps["self"][layer].weights), attention, rtol=1e-4, atol=1e-5)


def treebank(folder: Path) -> Path:
    """Write a treebank in which every word depends on the previous one."""
    rows = []
    for text in TEXTS:
        for number, word in enumerate(text.removesuffix(".").split(), 1):
            relation = "root" if number == 1 else "obj"
            rows.append(f"{number}\t{word}\t_\tX\t_\t_\t{number - 1}\t{relation}\t_\t_")
        rows.append("")
    file = folder / "a.conllu"
    file.write_text("\n".join(rows) + "\n")
    return file


@pytest.mark.filterwarnings("ignore:vocabulary=")
def test_heads_are_probed(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["probe", str(model), "--treebank", str(treebank(tmp_path)), "--minimum", "5"]) == 0
    assert "obj" in capsys.readouterr().out


def squad(folder: Path) -> Path:
    def article(name: str) -> dict[str, Any]:
        context = f"{name} went to Rome. Then it rained."
        answer = {"text": "Rome", "answer_start": context.index("Rome")}
        question = {"id": name, "question": "Where to?", "answers": [answer], "is_impossible": False}
        return {"title": name, "paragraphs": [{"context": context, "qas": [question]}]}

    for name, part in (("train", NAMES), ("validation", NAMES[:1]), ("test", NAMES[:1])):
        (folder / f"{name}.json").write_text(json.dumps({"version": "2", "data": [article(each) for each in part]}))
    return folder


def conll(folder: Path) -> Path:
    for name, part in (("train", TEXTS), ("dev", TEXTS[:4]), ("test", TEXTS[:4])):
        rows = [f"{word} {'B-LOC' if word in PLACES else 'O'}" for text in part for word in [*text[:-1].split(), ""]]
        (folder / f"{name}.txt").write_text("\n".join(row if row != " O" else "" for row in rows) + "\n")
    return folder


def labeled(folder: Path) -> Path:
    for name, part in (("train", TEXTS), ("validation", TEXTS[:6]), ("test", TEXTS[:6])):
        rows = [f"{text}\t{'south' if 'Rome' in text else 'north'}" for text in part]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return folder


@pytest.mark.filterwarnings("ignore:vocabulary=")
@pytest.mark.parametrize(
    ("recipe", "data"), [("text-classification", labeled), ("conll2003", conll), ("question-answering", squad)]
)
def test_fine_tuning_keeps_the_architecture(model: Path, tmp_path: Path, recipe: str, data: Any) -> None:
    (tmp_path / "data").mkdir()
    out = tmp_path / "run"
    settings = {**SMALL, "data": str(data(tmp_path / "data"))}
    if recipe == "question-answering":
        settings |= {"max_length": 40, "max_query": 10, "stride": 8}
    train(recipe, settings, out=out, init=str(model))
    loaded = directory.load(out)
    assert loaded.family == ("roberta" if "roberta" in str(model) else "distilbert")
    opened = transformers.AutoConfig.from_pretrained(out)
    auto = getattr(transformers, opened.architectures[0])
    other, info = auto.from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), info
    other.eval()
    predictor = manyheads.load(out)
    if recipe == "text-classification":
        pipeline: Any = transformers.pipeline("text-classification", str(out), top_k=1)
        (best,) = predictor.classify("Ann went to Rome.", top=1)
        assert pipeline(["Ann went to Rome."])[0][0]["label"] == best.label
    elif recipe == "conll2003":
        assert len(predictor.tag("Ann went to Rome").words) == 4
    else:
        assert predictor.answer("Where to?", "Bob went to Rome. Then it rained.") is not None


@pytest.mark.parametrize("kind", ["Roberta", "DistilBert"])
def test_multiple_choice_equals_transformers(kind: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 30, "max_position_embeddings": 16}
    if kind == "Roberta":
        sizes |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
                  "type_vocab_size": 1}  # fmt: skip
    else:
        sizes |= {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    theirs = randomize(getattr(transformers, f"{kind}ForMultipleChoice")(config), 0).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    loaded, tokens = directory.load(tmp_path / "theirs"), torch.randint(3, 30, (2, 3, 7))
    loaded.save(tmp_path / "ours")
    again = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(loaded.model(tokens), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(again(tokens).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (transformers.Dinov2Config(), "Dinov2Backbone"),
        (transformers.BertConfig(is_decoder=True), "BertLMHeadModel"),
        (transformers.MPNetConfig(), "MPNetForMaskedLM"),
        (transformers.SiglipVisionConfig(), "SiglipVisionModel"),
        (transformers.T5Config(), "T5ForConditionalGeneration"),
        (transformers.BartConfig(), "BartForConditionalGeneration"),
        (transformers.DebertaV2Config(), "DebertaV2ForSequenceClassification"),
        (transformers.ModernBertConfig(), "ModernBertForMaskedLM"),
        (transformers.SwinConfig(), "SwinForImageClassification"),
        (transformers.BeitConfig(), "BeitForImageClassification"),
        (transformers.ConvNextConfig(), "ConvNextForImageClassification"),
    ],
)
def test_an_unknown_architecture_is_refused_by_its_name(
    config: transformers.PreTrainedConfig, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    torch.save({"x": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    model, out = str(tmp_path), str(tmp_path / "out")
    commands = [["summary", model], ["summary", "hub:some/model"],
                ["train", "text-classification", "--init", model, "--out", out]]  # fmt: skip
    for command in commands:
        assert cli.main(command) == 2, command
        found = capsys.readouterr().err
        assert "expected" in found
        assert name in found
        assert "do not match" not in found


def test_a_tokenizer_with_an_added_token_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_byte_bpe(TEXTS * 3, 290)
    config = GPTConfig(vocab=tokenizer.get_vocab_size(), width=8, layers=1, heads=2, max_positions=64, end=0)
    directory.save(tmp_path, GPT(config), tokenizer)
    tokenizer.encode_special_tokens = False
    tokenizer.add_special_tokens(["[PAD]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    about = tmp_path / "tokenizer_config.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "split_special_tokens": False}))
    model = manyheads.load(tmp_path)
    assert model.generate("Ann went", max_tokens=2)
    with pytest.raises(UserError, match=f"a text has the token id {config.vocab}, but the model has"):
        model.generate("Ann [PAD] went", max_tokens=2)
    assert cli.main(["generate", str(tmp_path), "Ann [PAD]"]) == 2
    assert "leave out tokens that were added to the tokenizer" in capsys.readouterr().err
