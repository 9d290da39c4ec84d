"""Low-rank adapters against peft: an adapter of either library gives the same logits in the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from manyheads import directory
from manyheads.export import convert
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.vit import ViT, ViTConfig
from manyheads.training.config import TrainingConfig
from manyheads.training.tuning import select_trained
from tests.support.reference import ours as translator

BERT: dict[str, Any] = {
    "vocab": 37, "width": 24, "layers": 2, "heads": 3, "feed_forward": 32, "max_positions": 19, "dropout": 0.0,
    "attention_dropout": 0.0, "head_dropout": 0.0,
}  # fmt: skip
ROBERTA = {"segment_types": 1, "position_offset": 4, "dropout_below_pooler": True, "pad": 3}
DISTILBERT = {"head": "none", "segment_types": None, "pooler_activation": "relu", "pad": 0}
VIT: dict[str, Any] = {"image_size": 8, "patch": 4, "width": 24, "layers": 2, "heads": 3, "feed_forward": 32}
GPT2: dict[str, Any] = {
    "vocab": 37, "width": 24, "layers": 2, "heads": 3, "max_positions": 19, "end": 0, "dropout": 0.0,
    "attention_dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip
FLAT: dict[str, Any] = {"steps": 1, "schedule": "constant"}
SEQUENCE = {"head": "sequence", "labels": ("bad", "good", "so-so")}
# base model, settings of the fine-tuned model, layers of ours, layers of transformers
CASES: dict[str, tuple[Any, dict[str, Any], list[str], list[str]]] = {
    "bert": (Bert(BertConfig(**BERT, head="pooler")), SEQUENCE, ["query", "value"], ["query", "value"]),
    "roberta": (Bert(BertConfig(**BERT, **ROBERTA, head="none")),  # type: ignore[arg-type]
                SEQUENCE, ["attention", "expand"], ["query", "dense"]),
    "roberta-token": (Bert(BertConfig(**BERT, **ROBERTA, head="none")),  # type: ignore[arg-type]
                      {"head": "token", "labels": ("O", "B", "I")}, ["key"], ["key"]),
    "distilbert": (Bert(BertConfig(**BERT, **DISTILBERT)), SEQUENCE,  # type: ignore[arg-type]
                   ["query", "contract"], ["q_lin", "lin2"]),
    "distilbert-question": (Bert(BertConfig(**BERT, **DISTILBERT)), {"head": "question"},  # type: ignore[arg-type]
                            ["value"], ["v_lin"]),
    "vit": (ViT(ViTConfig(**VIT, labels=())), {"labels": ("a", "b", "c")}, ["query", "value"],
            ["q_proj", "v_proj"]),
    "deit": (ViT(ViTConfig(**VIT, labels=("a", "b"), distilled=True, fused="none")), {},
             ["encoder.blocks.*.output", "expand", "contract"], ["o_proj", "fc1", "fc2"]),
    "gpt2": (GPT(GPTConfig(**GPT2, head="language")), {}, ["query", "value", "contract"], ["c_attn", "c_proj"]),
    "gpt2-sequence": (GPT(GPTConfig(**GPT2, head="language")), {**SEQUENCE, "pad": 0}, ["key"], ["c_attn"]),
}  # fmt: skip


def inputs(family: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if family.startswith(("vit", "deit")):
        return torch.rand(3, 3, 8, 8, generator=generator)
    return torch.randint(5, 37, (3, 11), generator=generator)


def reference(path: Path, adapted: dict[str, Any], family: str) -> Any:
    """Return the model of a directory in transformers, with the head of the adapted model."""
    kind = {"sequence": "SequenceClassification", "token": "TokenClassification", "question": "QuestionAnswering"}
    name = (
        "ImageClassification" if family.startswith(("vit", "deit")) else kind.get(adapted.get("head", ""), "CausalLM")
    )
    labels = {"num_labels": len(adapted["labels"])} if "labels" in adapted else {}
    pad = {"pad_token_id": 0} if family == "gpt2-sequence" else {}
    return getattr(transformers, f"AutoModelFor{name}").from_pretrained(path, **labels, **pad).eval()


@torch.no_grad()
def logits(model: Any, x: Tensor, *, ours: bool) -> Tensor:
    if ours:
        return torch.as_tensor(model(x))
    output = model(x)
    return torch.stack([output.start_logits, output.end_logits], -1) if "start_logits" in output else output.logits


def randomize(model: Any, kind: str) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if kind in name or "classifier" in name or "score" in name:
                parameter.normal_(0, 0.3)


def base_of(family: str, path: Path) -> Any:
    torch.manual_seed(0)
    model = CASES[family][0]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    directory.save(path, model)
    return model


@pytest.mark.parametrize("family", CASES)
def test_an_adapter_of_ours_opens_in_peft_and_merges(family: str, tmp_path: Path) -> None:
    _, head, layers, _ = CASES[family]
    model: Any = adapt(base_of(family, tmp_path / "base"), **head)[0]
    config = TrainingConfig(**FLAT, lora_rank=3, lora_alpha=12.0, lora_layers=tuple(layers))
    select_trained(model, config)
    randomize(model, "lora_b")
    model.origin = str(tmp_path / "base")
    directory.save(tmp_path / "out", model)
    x = inputs(family)
    expected = logits(model.eval(), x, ours=True)
    torch.testing.assert_close(
        logits(directory.load(tmp_path / "out").model, x, ours=True), expected, atol=1e-5, rtol=0
    )
    loaded = directory.load(tmp_path / "out" / "adapter").model
    torch.testing.assert_close(logits(loaded, x, ours=True), expected, atol=1e-5, rtol=0)
    base = reference(tmp_path / "base", head, family)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out" / "adapter").eval()
    torch.testing.assert_close(logits(theirs, x, ours=False), expected, atol=1e-5, rtol=0)
    saved = (tmp_path / "out" / "adapter" / "adapter_model.safetensors").stat().st_size
    assert saved < (tmp_path / "out" / "model.safetensors").stat().st_size


@pytest.mark.parametrize("family", CASES)
def test_an_adapter_of_peft_loads(family: str, tmp_path: Path) -> None:
    _, head, _, layers = CASES[family]
    base_of(family, tmp_path / "base")
    task = {"sequence": "SEQ_CLS", "token": "TOKEN_CLS", "question": "QUESTION_ANS"}.get(head.get("head", ""))
    config = peft.LoraConfig(
        task_type=task, r=3, lora_alpha=5, target_modules=layers, use_rslora=family == "bert",
        alpha_pattern={"layers.1.attention.v_proj": 7} if family == "vit" else {},
        modules_to_save=["classifier"] if family in ("vit", "deit") else None,
    )  # fmt: skip
    theirs = peft.get_peft_model(reference(tmp_path / "base", head, family), config).eval()
    randomize(theirs, "lora_B")
    theirs.save_pretrained(str(tmp_path / "adapter"))
    x = inputs(family)
    loaded = directory.load(tmp_path / "adapter")
    torch.testing.assert_close(logits(loaded.model, x, ours=True), logits(theirs, x, ours=False), atol=1e-5, rtol=0)
    if family == "bert":
        assert loaded.model.config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_an_adapter_of_a_translator_opens_in_peft(tmp_path: Path) -> None:
    model: Any = translator("marian")
    directory.save(tmp_path / "base", model)
    select_trained(model, TrainingConfig(**FLAT, lora_rank=2, lora_layers=("query", "contract")))
    randomize(model, "lora_b")
    model.origin = str(tmp_path / "base")
    directory.save(tmp_path / "out", model)
    base = transformers.MarianMTModel.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out" / "adapter").eval()
    source = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
    with torch.no_grad():
        expected = model.eval()(source, torch.tensor([4, 4]), source)
        found = theirs(input_ids=source, decoder_input_ids=source).logits
        loaded = directory.load(tmp_path / "out" / "adapter").model(source, torch.tensor([4, 4]), source)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(loaded, expected, atol=2e-5, rtol=0)


def test_gradients_equal_those_of_peft(tmp_path: Path) -> None:
    _, head, layers, _ = CASES["bert"]
    model: Any = adapt(base_of("bert", tmp_path / "base"), **head)[0]
    select_trained(model, TrainingConfig(**FLAT, lora_rank=2, lora_layers=tuple(layers)))
    randomize(model, "lora_b")
    directory.save(tmp_path / "out", model)
    theirs = peft.PeftModel.from_pretrained(
        reference(tmp_path / "base", head, "bert"), tmp_path / "out" / "adapter", is_trainable=True
    )
    x = inputs("bert")
    model(x).square().sum().backward()
    theirs(x).logits.square().sum().backward()
    ours = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    others = {name: p.grad for name, p in theirs.named_parameters() if p.requires_grad}
    assert len(ours) == len(others) == 2 * 2 * 2 + 4  # A and B, query and value, two blocks; pooler and classifier
    for name, gradient in ours.items():
        assert gradient is not None
        if "lora_" in name:
            _, _, layer, _, kind, leaf = name.split(".")
            [other] = [
                g for n, g in others.items() if f"layer.{layer}." in n and f"{kind}.lora_{leaf[-1].upper()}" in n
            ]
        else:
            [other] = [
                g for n, g in others.items() if name.partition(".")[0] in n and n.endswith(name.rpartition(".")[2])
            ]
        torch.testing.assert_close(gradient, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"peft_type": "IA3"}, "expected an adapter with the 'peft_type' LORA"),
        ({"base_model_name_or_path": "no/such"}, "'base_model_name_or_path' is no/such: expected a model directory"),
        ({"use_dora": True}, "'use_dora' is True, which is not supported. Merge the adapter"),
        ({"bias": "all"}, "'bias' is 'all', which is not supported"),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights' is 'pissa', which is not supported"),
        ({"trainable_token_indices": [1]}, "'trainable_token_indices' is"),
        ({"target_modules": ["query", "value"]}, "has encoder.layer.0.attention.self.value.weight"),
        ("pickled", "adapter_model.bin is a pickle. Make a safe copy with 'manyheads convert"),
        ({"lora_alpha": "a"}, "the adapter does not fit the model in"),
        ("unknown", "the adapter does not fit the model in .*: 'encoder.layer.9.attention.self.query.weight'"),
        ("shape", "the adapter does not fit the model in"),
        ("damaged", "truncated or damaged"),
    ],
)
def test_a_faulty_adapter_is_one_error(fault: Any, message: str, tmp_path: Path) -> None:
    base_of("bert", tmp_path / "base")
    target, path = "base_model.model.encoder.layer.{}.attention.self.query.lora_{}.weight", tmp_path / "adapter"
    layer, size = (9 if fault == "unknown" else 0), (7 if fault == "shape" else 24)
    path.mkdir()
    settings = {"peft_type": "LORA", "lora_alpha": 4, "base_model_name_or_path": str(tmp_path / "base")}
    (path / "adapter_config.json").write_text(json.dumps(settings | (fault if isinstance(fault, dict) else {})))
    tensors = {target.format(layer, "A"): torch.zeros(2, 24), target.format(layer, "B"): torch.zeros(size, 2)}
    save_file(tensors, path / "adapter_model.safetensors")
    if fault == "pickled":
        (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    if fault == "damaged":
        (path / "adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=message) as caught:
        directory.load(path)
    assert "\n" not in str(caught.value)
    assert load_file(tmp_path / "base" / "model.safetensors")


def test_a_classifier_without_a_pooler_is_refused(tmp_path: Path) -> None:
    """The library peft gives such an adapter a random pooler at each load."""
    directory.save(tmp_path / "base", Bert(BertConfig(**BERT, head="none")))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"])
    peft.get_peft_model(theirs, config).save_pretrained(str(tmp_path / "adapter"))
    with pytest.raises(ValueError, match=r"neither the adapter nor its base model has bert\.pooler\.dense\.weight"):
        directory.load(tmp_path / "adapter")


def test_an_adapter_recognizes_its_base_and_keeps_its_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = adapt(base_of("bert", tmp_path / "base"), **SEQUENCE)[0]
    select_trained(model, TrainingConfig(**FLAT, lora_rank=3))
    monkeypatch.chdir(tmp_path)
    model.origin = "base"
    directory.save(tmp_path / "out", model, label_type="int")
    adapter = tmp_path / "out" / "adapter"
    monkeypatch.chdir("/")
    assert directory.load(adapter).model.config.labels == SEQUENCE["labels"]
    assert directory.load(adapter).label_type == "int"
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "../../base"}))
    assert directory.load(adapter).model.config.labels == SEQUENCE["labels"]
    torch.manual_seed(9)
    directory.save(tmp_path / "base", Bert(CASES["bert"][0].config))
    with pytest.raises(ValueError, match="other weights than the base model with which the adapter was trained"):
        directory.load(adapter)


def test_a_pickled_adapter_is_converted_and_its_base_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_of("bert", tmp_path / "base")
    theirs = peft.get_peft_model(
        transformers.AutoModel.from_pretrained(tmp_path / "base"), peft.LoraConfig(target_modules=["query"])
    )
    theirs.save_pretrained(str(tmp_path / "old"), safe_serialization=False)
    settings = json.loads((tmp_path / "old" / "adapter_config.json").read_text())
    (tmp_path / "old" / "adapter_config.json").write_text(
        json.dumps(settings | {"base_model_name_or_path": "owner/name", "revision": "v1"})
    )

    def snapshot_download(name: str, revision: str | None, local_files_only: bool, **_: Any) -> str:
        assert (name, revision, local_files_only) == ("owner/name", "v1", True)
        return str(tmp_path / "base")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    convert(tmp_path / "old", tmp_path / "new")
    directory.load(tmp_path / "new")
