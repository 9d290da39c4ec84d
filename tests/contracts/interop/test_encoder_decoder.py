"""Parity of the encoder-decoder with Marian and Pegasus of transformers: both directions, eval and train mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForSeq2SeqLM, MarianConfig, PegasusConfig

from manyheads import directory
from manyheads.interop.encoder_decoder import MARIAN, PEGASUS
from manyheads.interop.family import saved_tensors
from manyheads.interop.own import OWN_TRANSFORMER
from manyheads.models.presets import PRESETS, preset
from manyheads.models.transformer import Transformer, TransformerConfig
from tests.support.reference import ours, question, their_logits, theirs

CONFIGS = {"marian": MarianConfig, "pegasus": PegasusConfig}


def assert_same_logits(model: Transformer, other: nn.Module) -> None:
    asked = question(model.config)
    for mode in (False, True):
        model.train(mode)
        other.train(mode)
        logits = model(*asked)
        torch.testing.assert_close(logits, their_logits(other, *asked), rtol=1e-5, atol=1e-5)
        assert logits.std() > 0.1


def edit(path: Path, **settings: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ("marian", {}),
        ("marian", {"activation": "silu", "scale_embedding": False, "width": 30, "output_bias": True}),
        ("marian", {"tie": "target", "target_vocab": 77}),
        ("marian", {"tie": "none", "activation": "gelu_tanh"}),
        ("pegasus", {}),
        ("pegasus", {"activation": "gelu", "width": 18, "output_bias": True}),
    ],
)
def test_transformers_opens_our_models(tmp_path: Path, shape: str, settings: dict[str, Any]) -> None:
    model = ours(shape, **settings)
    assert directory.save(tmp_path, model, None) == shape
    other, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_logits(model, other)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ("marian", {"activation_function": "silu"}),
        ("marian", {"activation_function": "relu", "scale_embedding": True, "d_model": 42}),
        ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 63}),
        ("marian", {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
        ("pegasus", {"activation_function": "silu"}),
        ("pegasus", {"activation_function": "gelu_new", "scale_embedding": True, "d_model": 6}),
    ],
)
def test_transformers_models_open_and_export_again(tmp_path: Path, shape: str, settings: dict[str, Any]) -> None:
    other = theirs(shape, **settings)
    other.final_logits_bias[0, 5] = 0.5
    other.save_pretrained(tmp_path / "theirs")
    loaded = directory.load(tmp_path / "theirs")
    assert loaded.family == shape
    assert loaded.tokenizer is None
    assert loaded.model.config.output_bias
    assert_same_logits(loaded.model, other)
    assert directory.save(tmp_path / "again", loaded.model, None) == shape
    again, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(info.values()), info
    for name, tensor in other.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again")]
    assert set(files[0]) == set(files[1])
    before, after = other.config.to_dict(), again.config.to_dict()
    assert {key for key in before if before[key] != after.get(key)} <= {"activation_function", "_name_or_path"}


def test_positions_of_odd_width_equal_fairseq(tmp_path: Path) -> None:
    other = theirs("pegasus", d_model=33, encoder_attention_heads=3, decoder_attention_heads=1)
    other.save_pretrained(tmp_path)
    assert_same_logits(directory.load(tmp_path).model, other)


def test_tied_weights_are_written_once_and_loaded_tied(tmp_path: Path) -> None:
    directory.save(tmp_path, ours("marian"), None)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert not names & {"lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}
    model = directory.load(tmp_path).model
    assert model.source_embedding.weight is model.target_embedding.weight
    assert not model.source_embedding.weight[model.config.pad].any()


def test_a_file_may_contain_tied_weights_several_times(tmp_path: Path) -> None:
    model = ours("marian")
    directory.save(tmp_path, model, None)
    tensors = load_file(tmp_path / "model.safetensors")
    shared = tensors.pop("model.shared.weight")
    tensors |= {"lm_head.weight": shared.clone(), "model.encoder.embed_tokens.weight": shared.clone()}
    tensors["model.encoder.embed_positions.weight"] = model.positions.table.clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(directory.load(tmp_path).model.source_embedding.weight, model.source_embedding.weight)
    tensors["lm_head.weight"][3, 3] += 1
    tensors["model.encoder.embed_positions.weight"][3, 3] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"lm_head\.weight differs from .*embed_positions\.weight differs from the values"
    ):
        directory.load(tmp_path)


@pytest.mark.parametrize("shape", ["marian", "pegasus"])
def test_every_key_of_transformers_is_handled(shape: str) -> None:
    family = {"marian": MARIAN, "pegasus": PEGASUS}[shape]
    written = CONFIGS[shape]().to_dict()
    full = family.settings.to_ours(written)
    sizes: tuple[str, ...] = ("vocab_size", "d_model", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    sizes += tuple(f"{side}_{what}" for side in ("encoder", "decoder") for what in ("layers", "ffn_dim"))
    sizes += tuple(f"{side}_attention_heads" for side in ("encoder", "decoder"))
    assert family.settings.to_ours({key: written[key] for key in sizes}) == full, "our defaults are not theirs"
    assert family.settings.to_ours(family.settings.to_theirs(full)) == full
    assert family.settings.to_theirs(full).items() <= (written | family.settings.theirs_only).items()


def test_a_hub_configuration_is_read() -> None:
    """The keys of Helsinki-NLP's and google's files, which transformers 4 wrote."""
    written = CONFIGS["marian"](num_beams=4).to_dict() | {
        "_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.0,
        "normalize_before": False, "normalize_embedding": False, "num_hidden_layers": 12,
        "static_position_embeddings": True, "id2label": {"0": "LABEL_0"}, "bad_words_ids": [[58100]], "num_beams": 4,
        "torch_dtype": "float16", "_name_or_path": "x", "max_length": 512, "extra_pos_embeddings": 1,
    }  # fmt: skip
    assert MARIAN.settings.to_ours(written)["encoder_layers"] == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "mish"}, "'activation_function' is 'mish'"),
        ({"normalize_before": True}, "'normalize_before' is True; only False"),
        ({"encoder_layerdrop": 0.2}, "'encoder_layerdrop' is 0.2; only 0.0"),
        ({"tie_word_embeddings": False}, "'share_encoder_decoder_embeddings' is True, 'tie_word_embeddings' is False"),
        ({"num_hidden_layers": 7}, "'encoder_layers': 1, 'num_hidden_layers': 7 contradict"),
        ({"eos_token_id": [0, 1]}, r"'eos_token_id' is \[0, 1\]: expected an integer"),
        ({"d_model": "36"}, "'d_model' is '36': expected an integer"),
        ({"encoder_attention_heads": 0}, "'encoder_attention_heads' is 0: expected an integer from 1 to 4096"),
        (
            {"encoder_attention_heads": 5},
            r"'encoder_attention_heads' is 5: expected an integer that divides width \(36\)",
        ),
        ({"decoder_layers": 2**40}, "expected an integer from 1 to 1000"),
        (
            {"vocab_size": 2**40, "decoder_vocab_size": 2**40},
            "'vocab_size' is 1099511627776: expected|misshapen: final_logits_bias",
        ),
        ({"pad_token_id": 50}, r"'pad_token_id' is 50: expected an integer from 0 to below target_vocab \(50\)"),
        ({"pad_token_id": None}, "'pad_token_id' is missing"),
        ({"quantization_config": {"bits": 4}}, "unknown key 'quantization_config'"),
        ({"decoder_vocab_size": 60}, "one vocabulary"),
    ],
)
def test_unrepresentable_models_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    theirs("marian").save_pretrained(tmp_path)
    edit(tmp_path, **settings)
    with pytest.raises(ValueError, match=message) as caught:
        directory.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_mismatch_names_both_sides(tmp_path: Path) -> None:
    theirs("marian").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.encoder.layers.0.fc1.bias"]
    tensors["model.encoder.layer_norm.weight"] = torch.ones(36)
    tensors["model.decoder.layers.0.fc2.weight"] = torch.ones(36, 30)
    tensors["model.decoder.layers.1.fc2.bias"] = torch.ones(36, dtype=torch.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError) as caught:
        directory.load(tmp_path)
    for part in (
        "missing: model.encoder.layers.0.fc1.bias (50,)",
        "unexpected: model.encoder.layer_norm.weight (36,)",
        "misshapen: model.decoder.layers.0.fc2.weight: expected the shape (36, 31) from the configuration, "
        "found (36, 30) in the file",
        "contradictory: model.decoder.layers.1.fc2.bias: expected real numbers, found int8",
    ):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_precision_files_are_read(tmp_path: Path) -> None:
    other = theirs("pegasus").bfloat16()
    other.save_pretrained(tmp_path)
    model = directory.load(tmp_path).model
    assert model.source_embedding.weight.dtype == torch.float32
    assert torch.equal(model.source_embedding.weight, other.model.shared.weight.float())


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("transformer/")])
def test_every_preset_has_a_form(name: str) -> None:
    config = preset(name, source_vocab=90, target_vocab=90, pad=89, end=0, start=89)
    family = OWN_TRANSFORMER if name in ("transformer/blog", "transformer/tiny-experts") else MARIAN
    with torch.device("meta"):
        assert directory.family_of(Transformer(config))[0] is family
    stated = {"output_bias": False, **family.settings.to_ours(family.settings_of(config))}
    assert TransformerConfig(**stated) == config


@pytest.mark.parametrize(
    "settings",
    [
        {"final_norm": True}, {"norm": "pre"}, {"positions": "interleaved"}, {"positions": "learned"},
        {"attention_bias": False}, {"norm_eps": 1e-6}, {"norm": "pre", "final_norm": True, "tie": "none"},
        {"tie": "target", "source_pad": 3}, {"normalization": "batch"}, {"normalization": "none"},
        {"normalization": "batch", "norm": "pre", "final_norm": True},
    ],
)  # fmt: skip
def test_other_shapes_keep_our_format(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = ours("marian", output_bias=True, **settings)
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm1d)):
        assert norm.running_var is not None
        norm.running_var.uniform_(0.5, 2)
    model.eval()
    assert directory.save(tmp_path, model, None) == "manyheads-transformer"
    loaded = directory.load(tmp_path)
    assert loaded.model.config == model.config
    assert set(load_file(tmp_path / "model.safetensors")) == saved_tensors(model).keys()
    asked = question(model.config)
    assert torch.equal(loaded.model(*asked), model(*asked))
    edit(tmp_path, widht=3)
    with pytest.raises(ValueError, match="unknown key 'widht': 3"):
        directory.load(tmp_path)
