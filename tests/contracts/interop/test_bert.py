"""Parity of BERT with transformers: every head, both directions, values and gradients, eval and train mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from manyheads import directory
from manyheads.interop.bert import BERT
from manyheads.interop.table import slots
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.presets import PRESETS, preset
from tests.support.reference import randomize

SIZES: dict[str, Any] = {"vocab": 37, "width": 21, "layers": 2, "heads": 3, "feed_forward": 34, "max_positions": 19}
THEIR_SIZES: dict[str, Any] = {
    "vocab_size": 53, "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "intermediate_size": 17,
    "max_position_embeddings": 23, "type_vocab_size": 3,
}  # fmt: skip
HEADS = {
    "pooler": "BertModel", "masked_lm": "BertForMaskedLM", "pretraining": "BertForPreTraining",
    "next_sentence": "BertForNextSentencePrediction", "sequence": "BertForSequenceClassification",
    "token": "BertForTokenClassification", "question": "BertForQuestionAnswering", "choice": "BertForMultipleChoice",
}  # fmt: skip
LABELS = {"sequence": ("bad", "good", "so-so"), "token": ("O", "B-X", "I-X", "B-Y")}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "cat", "##s", "sleep", "two", ".")


def no_dropout(head: str, **settings: Any) -> BertConfig:
    sizes = {**SIZES, "head": head, "labels": LABELS.get(head, ()), "dropout": 0.0, "attention_dropout": 0.0}
    return BertConfig(**{**sizes, **settings})


def ours(head: str, **settings: Any) -> Bert:
    torch.manual_seed(0)
    config = no_dropout(head, **settings)
    return randomize(Bert(config), config.pad)


def theirs(head: str, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    named = {"id2label": dict(enumerate(LABELS[head]))} if head in LABELS else {}
    config = transformers.BertConfig(
        **{**THEIR_SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **named, **settings}
    )
    return randomize(getattr(transformers, HEADS[head])(config), 0)


def question(head: str, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([12, 5, 9, 1])
    tokens = torch.randint(1, vocabulary, (4, 12), generator=generator)
    tokens[torch.arange(12) >= lengths[:, None]] = 0
    segments = torch.randint(0, 2, (4, 12), generator=generator)
    if head == "choice":
        return tokens.view(2, 2, 12), lengths.view(2, 2), segments.view(2, 2, 12)
    return tokens, lengths, segments


def answers(model: nn.Module, head: str, asked: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Return the outputs of a model of either library at the real positions, in a fixed order."""
    tokens, lengths, segments = asked
    real = torch.arange(12) < lengths[..., None]
    if isinstance(model, Bert):
        output = model(*asked)
        found = list(output) if isinstance(output, tuple) else [output]
        found += [model.pool(output)] if head == "pooler" else []
        found = [*found[0].unbind(-1)] if head == "question" else found
    else:
        given = model(input_ids=tokens, attention_mask=real.long(), token_type_ids=segments)
        found = list(given.to_tuple())
    return [part[real] if part.shape[:2] == tokens.shape and head != "choice" else part for part in found]


def assert_same(model: Bert, other: nn.Module, head: str) -> None:
    """Compare the outputs and the gradients of every parameter."""
    asked = question(head, model.config.vocab)
    parameters, their_parameters = dict(model.named_parameters()), dict(other.named_parameters())
    rows = {row.ours: row.theirs for row in BERT.weights(model.config, parameters)}
    for mode in (False, True):
        both = []
        for each in (model, other):
            each.train(mode).zero_grad()
            both.append(answers(each, head, asked))
            torch.stack([(x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in both[-1]]).sum().backward()
        for mine, their in zip(*both, strict=True):
            torch.testing.assert_close(mine, their, rtol=1e-5, atol=1e-5)
            assert mine.std() > 0.05
        for name, parameter in parameters.items():
            pattern, numbers = slots(name)
            gradient = their_parameters[rows[pattern].format(*numbers)].grad
            assert gradient is not None
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=2e-5 * float(gradient.abs().max() + 1))


def opened(path: Path, head: str) -> nn.Module:
    model, info = getattr(transformers, HEADS[head]).from_pretrained(path, output_loading_info=True)
    assert not any(info.values()), info
    assert isinstance(model, nn.Module)
    return model


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_transformers_opens_our_models(tmp_path: Path, head: str, activation: str) -> None:
    model = ours(head, activation=activation)
    assert directory.save(tmp_path, model, None) == "bert"
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [HEADS[head]]
    assert_same(model, opened(tmp_path, head), head)


@pytest.mark.parametrize("head", HEADS)
def test_transformers_models_open_and_export_again(tmp_path: Path, head: str) -> None:
    other = theirs(head)
    other.save_pretrained(tmp_path / "theirs")  # type: ignore[operator]
    loaded = directory.load(tmp_path / "theirs")
    assert loaded.family == "bert"
    assert loaded.model.config.head == head
    assert loaded.model.config.labels == LABELS.get(head, ())
    assert_same(loaded.model, other, head)
    directory.save(tmp_path / "again", loaded.model, None)
    again = opened(tmp_path / "again", head)
    for name, tensor in other.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again")]
    assert set(files[0]) == set(files[1])
    before, after = (model.config.to_dict() for model in (other, again))  # type: ignore[union-attr, operator]
    assert {key for key in before if before[key] != after.get(key)} <= {"_name_or_path", "label2id"}
    if head in LABELS:
        assert after["label2id"] == {label: index for index, label in enumerate(LABELS[head])}


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("bert/") and "megatron" not in name])
def test_presets_equal_the_published_ones(name: str) -> None:
    config = preset(name)
    settings = BERT.settings_of(config)
    with torch.device("meta"):
        other = transformers.BertModel(transformers.BertConfig(**settings))
        model = Bert(config)
    shapes = {n: t.shape for n, t in other.named_parameters()}
    assert {n: t.shape for n, t in BERT.tensors_of(model).items()} == shapes


def test_models_without_a_pooler_are_read(tmp_path: Path) -> None:
    other = transformers.BertModel(theirs("pooler").config, add_pooling_layer=False)  # type: ignore[arg-type]
    other.save_pretrained(tmp_path / "theirs")
    model = directory.load(tmp_path / "theirs").model
    assert model.config.head == "none"
    tokens, lengths, segments = question("none", 53)
    given = other.eval()(input_ids=tokens, attention_mask=(torch.arange(12) < lengths[:, None]).long(),
                         token_type_ids=segments)  # fmt: skip
    real = torch.arange(12) < lengths[:, None]
    torch.testing.assert_close(model(tokens, lengths, segments)[real], given.last_hidden_state[real], atol=1e-5, rtol=0)
    directory.save(tmp_path / "again", model, None)
    assert set(load_file(tmp_path / "again" / "model.safetensors")) == set(other.state_dict())


def test_real_weights_give_published_scores(minilm: Path, tmp_path: Path) -> None:
    loaded = directory.load(minilm)
    assert (loaded.model.config.head, loaded.model.config.layers) == ("pooler", 6)
    assert loaded.tokenizer is not None
    texts = ["A man is eating food.", "Manyheads opens up every attention map, without giving up the fast kernels!"]
    encoded = [loaded.tokenizer.encode(text).ids for text in texts]
    lengths = torch.tensor([len(ids) for ids in encoded])
    tokens = torch.tensor([ids + [0] * (int(lengths.max()) - len(ids)) for ids in encoded])
    directory.save(tmp_path, loaded.model, loaded.tokenizer)
    tokenize = transformers.AutoTokenizer.from_pretrained(tmp_path)
    given = tokenize(texts, padding=True, return_tensors="pt")
    assert torch.equal(given["input_ids"], tokens)
    for path in (minilm, tmp_path):
        other = transformers.AutoModel.from_pretrained(path).eval()
        output = other(**given)
        real = given["attention_mask"].bool()
        states = loaded.model(tokens, lengths)
        torch.testing.assert_close(states[real], output.last_hidden_state[real], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(loaded.model.pool(states), output.pooler_output, rtol=1e-5, atol=1e-5)


def tokenizer() -> Tokenizer:
    found = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer(lowercase=True)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    found.add_special_tokens(list(WORDS[:5]))
    return found


def test_pipelines_open_saved_models(tmp_path: Path) -> None:
    text = "Two dogs sleep."
    for head in ("masked_lm", "sequence", "token"):
        directory.save(tmp_path / head, ours(head, vocab=len(WORDS)), tokenizer())
    ids = torch.tensor([tokenizer().encode(text).ids])

    sequence = transformers.pipeline("text-classification", str(tmp_path / "sequence"), top_k=None)
    chances = ours("sequence", vocab=len(WORDS)).eval()(ids).softmax(-1)[0]
    expected = dict(zip(LABELS["sequence"], chances.tolist(), strict=True))
    scores: Any = sequence([text])[0]
    assert {each["label"]: each["score"] for each in scores} == pytest.approx(expected, abs=1e-5)

    token = transformers.pipeline("token-classification", str(tmp_path / "token"), ignore_labels=[])
    best = ours("token", vocab=len(WORDS)).eval()(ids)[0].argmax(-1)[1:-1]
    assert [each["entity"] for each in token(text)] == [LABELS["token"][int(index)] for index in best]

    fill = transformers.pipeline("fill-mask", str(tmp_path / "masked_lm"), top_k=3)
    masked = torch.tensor([tokenizer().encode("Two [MASK] sleep.").ids])
    values, words = ours("masked_lm", vocab=len(WORDS)).eval()(masked)[0, 2].softmax(-1).topk(3)
    found = fill("Two [MASK] sleep.")
    assert [each["token"] for each in found] == words.tolist()
    assert [each["score"] for each in found] == pytest.approx(values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("head", "auto"),
    [("question", "AutoModelForQuestionAnswering"), ("choice", "AutoModelForMultipleChoice"),
     ("pretraining", "AutoModelForPreTraining"), ("next_sentence", "AutoModelForNextSentencePrediction")],
)  # fmt: skip
def test_auto_classes_open_the_other_heads(tmp_path: Path, head: str, auto: str) -> None:
    directory.save(tmp_path, ours(head, vocab=len(WORDS)), tokenizer())
    assert type(getattr(transformers, auto).from_pretrained(tmp_path)).__name__ == HEADS[head]
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path)("two dogs", "a cat")
    assert encoded["token_type_ids"] == tokenizer().encode("two dogs", "a cat").type_ids
    assert max(encoded["token_type_ids"]) == 1


def test_original_names_and_unused_tensors_are_handled(tmp_path: Path) -> None:
    """Load the layout of google-bert's files on the Hub: gamma and beta, a pooler next to a masked LM, stored
    positions, ties.
    """
    model = ours("masked_lm")
    directory.save(tmp_path, model, None)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert len(set(old) - set(tensors)) == 2 * (1 + 2 * 2 + 1)
    old |= {
        "bert.embeddings.position_ids": torch.arange(19)[None],
        "bert.pooler.dense.weight": torch.zeros(21, 21),
        "bert.pooler.dense.bias": torch.zeros(21),
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
    }
    save_file(old, tmp_path / "model.safetensors")
    loaded = directory.load(tmp_path).model
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
    old["bert.embeddings.position_ids"][0, 3] = 7
    old["cls.predictions.decoder.weight"][3, 3] += 1
    save_file(old, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"decoder\.weight differs from .*position_ids differs from the values"):
        directory.load(tmp_path)


def test_both_pretraining_heads_are_read_for_any_config(tmp_path: Path) -> None:
    model = ours("pretraining")
    directory.save(tmp_path, model, None)
    edit(tmp_path, architectures=["BertForMaskedLM"])  # as bert-base-uncased's own says
    assert directory.load(tmp_path).model.config.head == "pretraining"
    words, new = adapt(directory.load(tmp_path).model, head="masked_lm", labels=())
    assert new == []
    tokens, lengths, segments = question("masked_lm", 37)
    torch.testing.assert_close(words(tokens, lengths, segments), model.eval()(tokens, lengths, segments)[0])


def edit(path: Path, remove: tuple[str, ...] = (), **settings: Any) -> None:
    file = path / "config.json"
    known = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({key: value for key, value in known.items() if key not in remove}))


def test_unnamed_labels_get_names(tmp_path: Path) -> None:
    directory.save(tmp_path, ours("sequence", labels=("x", "y")), None)
    edit(tmp_path, remove=("id2label", "label2id"))
    assert directory.load(tmp_path).model.config.labels == ("LABEL_0", "LABEL_1")
    edit(tmp_path, id2label={"1": "yes", "0": "no"})
    assert directory.load(tmp_path).model.config.labels == ("no", "yes")
    edit(tmp_path, label2id={"yes": "1", "no": "0"})  # as published examples write it
    assert directory.load(tmp_path).model.config.labels == ("no", "yes")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"architectures": ["BertLMHeadModel"]},
            r"'architectures' is \['BertLMHeadModel'\]; expected one of BertModel",
        ),
        ({"is_decoder": True}, "'is_decoder' is True; only False"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'; only 'absolute'"),
        ({"problem_type": "ranking"}, "'problem_type' is 'ranking' .* expected one of single_label_classification"),
        ({"problem_type": "regression"}, "'problem_type' is 'regression' for 3 labels"),
        ({"tie_word_embeddings": False}, "'tie_word_embeddings' is False"),
        ({"hidden_act": "mish"}, "'hidden_act' is 'mish'"),
        ({"id2label": {"0": "a", "2": "b"}}, "expected a name for each of 0, 1"),
        ({"label2id": {"a": 0, "b": 1}}, "'label2id' is .* which contradicts"),
        (
            {"id2label": {"0": "a"}, "label2id": None, "problem_type": "single_label_classification"},
            "has only one label, 'a': expected at least two",
        ),
        (
            {"id2label": {"0": "a", "1": "b"}, "label2id": None},
            r"misshapen: classifier.weight: expected the shape \(2, 21\) .*, found \(3, 21",
        ),
        ({"hidden_size": 24}, "misshapen: bert.embeddings.word_embeddings.weight"),
        ({"architectures": ["BertForQuestionAnswering"]}, "missing: qa_outputs.*unexpected: .*classifier"),
        ({"rope_scaling": {"type": "yarn"}}, "unknown key 'rope_scaling'"),
    ],
)
def test_unrepresentable_models_are_refused_in_one_line(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    directory.save(tmp_path, ours("sequence"), None)
    edit(tmp_path, **settings)
    with pytest.raises(ValueError, match=message) as raised:
        directory.load(tmp_path)
    assert "\n" not in str(raised.value)


def test_every_key_of_transformers_is_handled() -> None:
    written = transformers.BertConfig().to_dict()
    full = BERT.settings.to_ours(written)
    assert BERT.settings.to_ours({}) == full, "our defaults are not theirs"
    assert BertConfig(**full) == preset("bert/base-uncased")
    assert BERT.settings.to_ours(BERT.settings.to_theirs(full)) == full
    assert BERT.settings.to_theirs(full).items() <= {**written, **BERT.settings.theirs_only}.items()
