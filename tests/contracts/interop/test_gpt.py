"""Parity of GPT and GPT-2 with transformers: both directions, eval and train mode, values and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    OpenAIGPTModel,
    PreTrainedModel,
)

from manyheads import directory
from manyheads.interop.gpt import GPT2, OPENAI_GPT
from manyheads.interop.table import weights_to_theirs
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.presets import PRESETS, preset
from tests.support.refusals import assert_settings_refused

FAMILIES = {"gpt2": GPT2, "openai-gpt": OPENAI_GPT}
CONFIGS = {"gpt2": GPT2Config, "openai-gpt": OpenAIGPTConfig}
NORMS = {"gpt2": "pre", "openai-gpt": "post"}
V = 47
M = TypeVar("M", bound=nn.Module)
SIZES: dict[str, Any] = {
    "vocab_size": V, "n_positions": 19, "n_embd": 21, "n_layer": 3, "n_head": 3, "bos_token_id": 46, "eos_token_id": 46,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


def ours(kind: str, **settings: Any) -> GPT:
    sizes: dict[str, Any] = {"vocab": V, "end": 46, "width": 15, "layers": 2, "heads": 5, "max_positions": 17}
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
    torch.manual_seed(0)
    return randomize(GPT(GPTConfig(**{**sizes, **rates, "norm": NORMS[kind], **settings})))


def theirs(kind: str, base: bool = False, **settings: Any) -> Any:
    torch.manual_seed(0)
    classes = {"gpt2": (GPT2LMHeadModel, GPT2Model), "openai-gpt": (OpenAIGPTLMHeadModel, OpenAIGPTModel)}
    return randomize(classes[kind][base](CONFIGS[kind](**{**SIZES, **settings})))


def randomize(model: M) -> M:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def opened(path: Path) -> Any:
    """Load a directory with transformers, which must find every weight and no other."""
    found: Any = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    model, info = found
    assert not any(info.values()), info
    return model


def texts() -> Tensor:
    return torch.randint(V, (3, 11), generator=torch.Generator().manual_seed(1))


def assert_same_logits(model: GPT, other: Any) -> tuple[Tensor, Tensor]:
    """Compare logits in both modes, with padded rows. Return those of the train mode."""
    tokens, lengths = texts(), torch.tensor([11, 4, 7])
    real = torch.arange(11) < lengths[:, None]
    for mode in (False, True):
        model.train(mode)
        other.train(mode)
        logits = model(tokens, lengths)
        expected = other(input_ids=tokens, attention_mask=real.long()).logits
        torch.testing.assert_close(logits[real], expected[real], rtol=1e-5, atol=1e-5)
        assert logits.std() > 0.1
    return logits[real], expected[real]


def assert_same(model: GPT, other: PreTrainedModel) -> None:
    """Compare logits in both modes, and in train mode the gradients of every kind of matrix."""
    logits, expected = assert_same_logits(model, other)
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    family = FAMILIES[other.config.model_type]
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    rows = family.weights(model.config, gradients)
    mine = weights_to_theirs(rows, gradients)
    reference = {name: p.grad for name, p in other.named_parameters()}
    assert set(mine) <= set(reference)
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, reference[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [1, 3, 30])
def test_windows_are_those_of_gpt_neo(window: int, tmp_path: Path) -> None:
    """GPT-Neo has no bias in queries, keys and values, and does not divide scores by the root of the head width."""
    config = GPTNeoConfig(
        vocab_size=V, hidden_size=20, num_layers=4, attention_types=[[["global", "local"], 2]], num_heads=4,
        window_size=window, max_position_embeddings=17, attention_dropout=0.0, embed_dropout=0.0, resid_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    other = randomize(GPTNeoForCausalLM(config))
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in other.state_dict().items()}
    model = ours("gpt2", width=20, layers=4, heads=4, window=window)
    names = {"embedding.weight": "wte.weight", "positions.table": "wpe.weight"}
    names |= {f"decoder.norm.{leaf}": f"ln_f.{leaf}" for leaf in ("weight", "bias")}
    for layer in range(4):
        for mine, theirs in (
            ("attention_norm", "ln_1"), ("feed_forward_norm", "ln_2"), ("attention.output", "attn.attention.out_proj"),
            ("feed_forward.expand", "mlp.c_fc"), ("feed_forward.contract", "mlp.c_proj"),
            *((f"attention.{part}", f"attn.attention.{part[0]}_proj") for part in ("query", "key", "value")),
        ):  # fmt: skip
            for leaf in ("weight", "bias"):
                names[f"decoder.blocks.{layer}.{mine}.{leaf}"] = f"h.{layer}.{theirs}.{leaf}"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors.get(names[name], torch.zeros_like(parameter)))
            if name.endswith("query.weight"):
                parameter.mul_(5**0.5)
    assert_same_logits(model, other)
    assert directory.save(tmp_path, model, None) == "manyheads-gpt"
    assert directory.load(tmp_path).model.config == model.config
    with pytest.raises(ValueError, match=f"window is {window}"):
        GPT2.settings_of(model.config)


OURS = [
    ("gpt2", {}),
    ("gpt2", {"feed_forward": 31, "activation": "relu", "heads": 1}),
    ("gpt2", {"bias": False, "activation": "gelu", "end": None}),
    ("gpt2", {"bias": False, "feed_forward": 40, "norm_eps": 1e-3, "activation": "silu"}),
    ("openai-gpt", {}),
    ("openai-gpt", {"activation": "silu", "bias": False, "end": None}),
]


@pytest.mark.parametrize(("kind", "settings"), OURS)
def test_transformers_opens_our_models(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model = ours(kind, **settings)
    assert directory.save(tmp_path, model, None) == kind
    other = opened(tmp_path)
    assert_same(model, other)
    again = directory.load(tmp_path).model
    assert again.config == model.config
    for name, parameter in model.named_parameters():
        assert torch.equal(again.get_parameter(name), parameter), name


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", {}),
        ("gpt2", {"n_inner": 30, "activation_function": "gelu", "layer_norm_epsilon": 1e-3, "eos_token_id": None}),
        ("gpt2", {"activation_function": "silu", "n_embd": 13, "n_head": 1, "reorder_and_upcast_attn": True}),
        ("openai-gpt", {}),
        ("openai-gpt", {"afn": "relu", "n_embd": 8, "n_head": 2}),
    ],
)
def test_transformers_models_open_and_export_again(
    tmp_path: Path, kind: str, base: bool, settings: dict[str, Any]
) -> None:
    other = theirs(kind, base, **settings)
    other.save_pretrained(tmp_path / "theirs")
    loaded = directory.load(tmp_path / "theirs")
    assert loaded.family == kind
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    assert_same(loaded.model, whole)
    assert directory.save(tmp_path / "again", loaded.model, None) == kind
    again = opened(tmp_path / "again")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    if not base:
        files = [load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again")]
        assert set(files[0]) == set(files[1])
    before, after = other.config.to_dict(), again.config.to_dict()
    assert {key for key in before if before[key] != after.get(key)} <= {
        "architectures", "_name_or_path", "bos_token_id", "reorder_and_upcast_attn",
    }  # fmt: skip


def test_hub_files_are_read(tmp_path: Path) -> None:
    """Names without a prefix, stored masks of several types, keys that transformers 2 wrote."""
    other = theirs("gpt2", base=True)
    other.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "h.0.attn.c_attn.weight" in tensors
    mask = torch.ones(19, 19).tril()[None, None]
    for layer, dtype in enumerate((torch.float32, torch.uint8, torch.bool)):
        tensors[f"h.{layer}.attn.bias"] = mask.to(dtype)
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    file = tmp_path / "config.json"
    old = {"n_ctx": 19, "task_specific_params": {"text-generation": {"do_sample": True}}, "architectures": None}
    file.write_text(json.dumps(json.loads(file.read_text()) | old))
    model = directory.load(tmp_path).model
    torch.testing.assert_close(model.hidden(texts()), other.eval()(texts()).last_hidden_state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "openai-gpt"])
def test_every_key_of_transformers_is_handled(kind: str) -> None:
    family, written = FAMILIES[kind], CONFIGS[kind]().to_dict()
    full = family.settings.to_ours(written)
    assert family.settings.to_ours({}) == full, "our defaults are not theirs"
    assert family.settings.to_ours(family.settings.to_theirs(full)) == full
    assert family.settings.to_theirs(full).items() <= (written | {"bias": True}).items()
    assert GPTConfig(**full) == preset({"gpt2": "gpt2/124m", "openai-gpt": "gpt/117m"}[kind])


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("gpt")])
def test_every_preset_has_a_form(name: str) -> None:
    with torch.device("meta"):
        family = directory.family_of(GPT(preset(name)))[0]
    own = directory.FAMILIES["manyheads-gpt"]  # no other tool opens a GPT-3, or a GPT without feed-forward networks
    kind = "own" if name == "gpt/attention-only" else name.partition("/")[0]
    assert family is {"gpt": OPENAI_GPT, "gpt2": GPT2, "gpt3": own, "own": own}[kind]
    if family is not own:
        assert GPTConfig(**family.settings.to_ours(family.settings_of(preset(name)))) == preset(name)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("openai-gpt", {"feed_forward": 20, "activation": "gelu", "bias": False}),
        ("gpt2", {"feed_forward": "none"}),
        ("gpt2", {"feed_forward": "none", "bias": False}),
    ],
)
def test_other_shapes_keep_our_format(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = ours(kind, **settings)
    assert directory.save(tmp_path, model, None) == "manyheads-gpt"
    loaded = directory.load(tmp_path).model
    assert loaded.config == model.config
    assert torch.equal(loaded(texts()), model.eval()(texts()))


def test_the_tied_head_is_written_once_and_loaded_tied(tmp_path: Path) -> None:
    directory.save(tmp_path, ours("gpt2"), None)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model = directory.load(tmp_path).model
    assert model.output_weight is model.embedding.weight


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "mish"}, "'activation_function' is 'mish'"),
        ({"tie_word_embeddings": False}, "'tie_word_embeddings' is False; only True"),
        ({"scale_attn_by_inverse_layer_idx": True}, "'scale_attn_by_inverse_layer_idx' is True; only False"),
        ({"add_cross_attention": True}, "'add_cross_attention' is True; only False"),
        ({"eos_token_id": [1, 2]}, r"'eos_token_id' is \[1, 2\]: expected an integer"),
        ({"n_head": 4}, r"'n_head' is 4: expected an integer that divides width \(21\)"),
        ({"n_layer": 2**40}, "expected an integer from 1 to 1000"),
        ({"n_ctx": 5}, "'n_positions': 19, 'n_ctx': 5 contradict"),
        ({"n_positions": 1_000_000}, r"wpe.weight: expected the shape \(1000000, 21\) .*, found \(19, 21\)"),
        ({"n_embd": 10**9, "n_head": 1}, "more memory than there can be|n_embd|width"),
        ({"quantization_config": {"bits": 4}}, "unknown key 'quantization_config'"),
        ({"bias": False}, "transformer.h.0.attn.c_attn.bias differs from the values that this architecture computes"),
    ],
)
def test_unrepresentable_models_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    theirs("gpt2").save_pretrained(tmp_path)
    assert_settings_refused(tmp_path, settings, message)


def test_a_mismatch_names_both_sides(tmp_path: Path) -> None:
    theirs("gpt2").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["transformer.h.0.attn.c_attn.bias"]
    tensors["score.weight"] = torch.ones(2, 21)
    tensors["transformer.h.1.attn.c_attn.weight"] = torch.ones(63, 21)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError) as caught:
        directory.load(tmp_path)
    for part in (
        "missing: transformer.h.0.attn.c_attn.bias (63,)",
        "unexpected: score.weight (2, 21)",
        "misshapen: transformer.h.1.attn.c_attn.weight: expected the shape (21, 63) from the configuration, "
        "found (63, 21) in the file",
    ):
        assert part in str(caught.value)


def test_unequal_copies_of_a_matrix_are_reported(tmp_path: Path) -> None:
    theirs("gpt2").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": torch.ones(V, 21)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"contradictory: lm_head\.weight differs from transformer\.wte\.weight"):
        directory.load(tmp_path)


def test_an_end_token_outside_the_vocabulary_is_ignored(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """An end token id outside the vocabulary is ignored. transformers writes 50256 if the user sets none."""
    for name, end in (("default", 50256), ("named", V)):
        other = theirs("gpt2", bos_token_id=1, eos_token_id=end).eval()
        other.save_pretrained(tmp_path / name)
        model = directory.load(tmp_path / name).model
        record = log.records[-1]
        assert record.levelname == "WARNING"
        assert (
            record.getMessage()
            == f"'eos_token_id' is {end}, but the vocabulary has {V} entries; texts have no end token"
        )
        assert model.config.end is None
        assert_same(model, other)
        directory.save(tmp_path / f"{name}-again", model)
        again = opened(tmp_path / f"{name}-again")
        assert again.config.eos_token_id is None
        assert_same(directory.load(tmp_path / name).model, again)


def test_known_irrelevant_hub_tensors_are_ignored(tmp_path: Path) -> None:
    other = theirs("gpt2", False)
    other.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_special": 0, "predict_special_tokens": True}))
    assert_same(directory.load(tmp_path).model, other)
