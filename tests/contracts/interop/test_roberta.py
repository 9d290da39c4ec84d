"""Parity of RoBERTa, DistilBERT and Megatron-LM's BERT with transformers.

Every head, both directions, values and gradients, both modes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from manyheads import directory
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, BertConfig
from tests.support.reference import randomize
from tests.support.refusals import assert_settings_refused

LABELS = {"sequence": ("bad", "good", "so-so"), "token": ("O", "B-X", "I-X", "B-Y")}
ARCHITECTURES = {
    "roberta": {"pooler": "RobertaModel", "masked_lm": "RobertaForMaskedLM", "token": "RobertaForTokenClassification",
                "sequence": "RobertaForSequenceClassification", "question": "RobertaForQuestionAnswering"},
    "distilbert": {"none": "DistilBertModel", "masked_lm": "DistilBertForMaskedLM",
                   "token": "DistilBertForTokenClassification", "sequence": "DistilBertForSequenceClassification",
                   "question": "DistilBertForQuestionAnswering"},
    "megatron-bert": {"pooler": "MegatronBertModel", "pretraining": "MegatronBertForPreTraining",
                      "sequence": "MegatronBertForSequenceClassification",
                      "token": "MegatronBertForTokenClassification",
                      "question": "MegatronBertForQuestionAnswering"},
}  # fmt: skip
KINDS = [(family, head) for family, heads in ARCHITECTURES.items() for head in heads]
LENGTHS = torch.tensor([12, 5, 9, 1])


def config_of(family: str, head: str, **settings: Any) -> Any:
    labels = {"id2label": dict(enumerate(LABELS[head]))} if head in LABELS else {}
    if family == "roberta":
        sizes: dict[str, Any] = {
            "vocab_size": 53, "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5,
            "intermediate_size": 17, "max_position_embeddings": 20, "type_vocab_size": 1, "pad_token_id": 1,
            "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        }  # fmt: skip
        return transformers.RobertaConfig(**{**sizes, **labels, **settings})
    if family == "megatron-bert":
        sizes = {
            "vocab_size": 53, "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5,
            "intermediate_size": 17, "max_position_embeddings": 18, "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }  # fmt: skip
        return transformers.MegatronBertConfig(**{**sizes, **labels, **settings})
    sizes = {
        "vocab_size": 53, "dim": 30, "n_layers": 3, "n_heads": 5, "hidden_dim": 17, "max_position_embeddings": 18,
        "dropout": 0.0, "attention_dropout": 0.0, "qa_dropout": 0.0, "seq_classif_dropout": 0.0,
    }  # fmt: skip
    return transformers.DistilBertConfig(**{**sizes, **labels, **settings})


def theirs(family: str, head: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = config_of(family, head, **settings)
    return randomize(getattr(transformers, ARCHITECTURES[family][head])(config), config.pad_token_id)


def ours(family: str, head: str) -> Bert:
    torch.manual_seed(0)
    kind: dict[str, Any] = {"segment_types": None, "pooler_activation": "relu", "pad": 0}
    if family == "megatron-bert":
        kind = {"norm": "pre", "embedding_norm": False, "pad": 0}
    if family == "roberta":
        kind = {"segment_types": 1, "position_offset": 4, "dropout_below_pooler": True, "pad": 3}
    config = BertConfig(
        vocab=37, width=21, layers=2, heads=3, feed_forward=34, max_positions=19, head=head,  # type: ignore[arg-type]
        labels=LABELS.get(head, ()), dropout=0.0, attention_dropout=0.0, **kind,
    )  # fmt: skip
    return randomize(Bert(config), config.pad)


def tokens_of(config: BertConfig) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.pad + 1, config.vocab, (4, 12), generator=generator)
    tokens[torch.arange(12) >= LENGTHS[:, None]] = config.pad
    return tokens


def answers(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """Return the outputs of a model of either library at the real positions."""
    real = torch.arange(12) < LENGTHS[:, None]
    if isinstance(model, Bert):
        output = model(tokens, LENGTHS)
        outputs = list(output) if isinstance(output, tuple) else [output]
        parts = [*output.unbind(-1)] if model.config.head == "question" else outputs
        parts += [model.pool(output)] if model.config.head == "pooler" else []
    else:
        parts = list(model(input_ids=tokens, attention_mask=real.long()).to_tuple())
    return [part[real] if part.shape[:2] == tokens.shape else part for part in parts]


def assert_same(model: Bert, other: nn.Module) -> None:
    """Compare outputs in both modes, and the gradients of all weights, by the parameter names of both models."""
    tokens = tokens_of(model.config)
    for training in (False, True):
        outputs = []
        for network in (model, other):
            network.train(training).zero_grad()
            parts = answers(network, tokens)
            torch.stack(
                [(part * torch.linspace(-1, 1, part.numel()).view_as(part)).sum() for part in parts]
            ).sum().backward()
            outputs.append(parts)
        for mine, expected in zip(*outputs, strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
            assert mine.std() > 0.05
    family = directory.family_of(model)[0]
    gradients = Bert(model.config)
    gradients.load_state_dict({name: p.grad for name, p in model.named_parameters()})
    expected_gradients = {
        name: p.grad for name, p in other.named_parameters(remove_duplicate=False) if p.grad is not None
    }
    for name, gradient in family.tensors_of(gradients).items():
        scale = float(gradient.abs().max() + 1)
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=2e-5 * scale)


@pytest.mark.parametrize(("family", "head"), KINDS)
def test_transformers_models_open_and_export_again(tmp_path: Path, family: str, head: str) -> None:
    other = theirs(family, head)
    other.save_pretrained(tmp_path / "theirs")
    loaded = directory.load(tmp_path / "theirs")
    assert (loaded.family, loaded.model.config.head) == (family, head)
    assert loaded.model.config.labels == LABELS.get(head, ())
    assert loaded.model.config.max_positions == 18
    assert_same(loaded.model, other)
    assert directory.save(tmp_path / "again", loaded.model) == family
    again, info = type(other).from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(info.values()), info
    for name, tensor in other.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again")]
    assert set(files[0]) == set(files[1])
    before, after = (model.config.to_dict() for model in (other, again))
    assert {key for key in before if before[key] != after.get(key)} <= {"_name_or_path", "label2id"}


@pytest.mark.parametrize(("family", "head"), KINDS)
def test_transformers_opens_our_models(tmp_path: Path, family: str, head: str) -> None:
    model = ours(family, head)
    assert directory.save(tmp_path, model) == family
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [ARCHITECTURES[family][head]]
    other, info = getattr(transformers, ARCHITECTURES[family][head]).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_same(model, other)


def test_the_longest_text_has_a_position_for_every_token(tmp_path: Path) -> None:
    other = theirs("roberta", "pooler").eval()
    other.save_pretrained(tmp_path)
    model = directory.load(tmp_path).model
    tokens = torch.randint(2, 53, (1, 18))
    torch.testing.assert_close(model(tokens), other(input_ids=tokens).last_hidden_state, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="19 tokens, but the model takes at most 18"):
        model(torch.randint(2, 53, (1, 19)))


def test_a_head_unknown_to_transformers_is_saved_in_our_format(tmp_path: Path) -> None:
    model, _ = adapt(ours("distilbert", "masked_lm"), head="next_sentence")
    assert directory.save(tmp_path, model) == "manyheads-bert"
    assert directory.load(tmp_path).model.config == model.config


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("roberta", {"max_position_embeddings": 2}, "'max_position_embeddings' is 2; expected more than 2"),
        ("roberta", {"hidden_act": "relu"}, "'hidden_act' is 'relu'"),
        ("roberta", {"pad_token_id": "x"}, "'pad_token_id' is 'x': expected an integer"),
        ("roberta", {"architectures": ["RobertaForCausalLM"]}, "expected one of RobertaModel"),
        ("distilbert", {"dim": 10**9}, "'dim' is 1000000000: expected an integer from 1"),
    ],
)
def test_unrepresentable_models_are_refused(
    tmp_path: Path, family: str, settings: dict[str, Any], message: str
) -> None:
    theirs(family, "masked_lm").save_pretrained(tmp_path)
    assert_settings_refused(tmp_path, settings, message)


def test_distilberts_classifier_dropout_is_saved(tmp_path: Path) -> None:
    model, _ = adapt(ours("distilbert", "sequence"), dropout=0.3, head_dropout=None)
    assert directory.save(tmp_path, model, None) == "distilbert"
    assert transformers.AutoConfig.from_pretrained(tmp_path).seq_classif_dropout == 0.3
    assert directory.load(tmp_path).model.config.head_dropout == 0.3


@pytest.mark.parametrize("head", ARCHITECTURES["roberta"])
def test_xlm_roberta_opens_and_is_saved_as_roberta(head: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    name = ARCHITECTURES["roberta"][head]
    settings = {
        k: v for k, v in config_of("roberta", head).to_dict().items() if k not in ("model_type", "architectures")
    }
    other = randomize(getattr(transformers, f"XLM{name}")(transformers.XLMRobertaConfig(**settings)), 1)
    other.save_pretrained(tmp_path / "theirs")
    loaded = directory.load(tmp_path / "theirs")
    assert (loaded.family, loaded.model.config.head) == ("xlm-roberta", head)
    assert_same(loaded.model, other)
    assert directory.save(tmp_path / "again", loaded.model) == "roberta"
    again, info = getattr(transformers, name).from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(info.values()), info
    assert_same(loaded.model, again)
