"""Models that only transformers builds: maps and lens equal its outputs, and nothing but tensors is loaded."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import manyheads
from manyheads import cli, directory
from manyheads.data.text.tokenizers import train_byte_bpe
from manyheads.errors import MissingExtra, UserError
from manyheads.tasks.foreign import TransformersPredictor
from tests.contracts.test_extras import without
from tests.support.services import CORPUS

TEXT = "the cat sat on the mat"
SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
T5 = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**SMALL, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2ForCausalLM", {**SMALL, "num_key_value_heads": 2}),
    "gpt_neox": ("GPTNeoXForCausalLM", SMALL),
    "gemma2": ("Gemma2ForCausalLM", {**SMALL, "num_key_value_heads": 2, "head_dim": 4}),
    "opt": ("OPTForCausalLM", {**SMALL, "ffn_dim": 32, "word_embed_proj_dim": 16}),
    "albert": ("AlbertForMaskedLM", {**SMALL, "embedding_size": 8}),
    "deberta-v2": ("DebertaV2ForMaskedLM", SMALL),
    "t5": ("T5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", {
        "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 40,
        "decoder_start_token_id": 2,
    }),
    "camembert": ("CamembertForSequenceClassification", SMALL),
    "xlnet": ("XLNetLMHeadModel", {"d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 32}),
    "mamba": ("MambaForCausalLM", {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
}  # fmt: skip
WRITERS = [name for name, (kind, _) in KINDS.items() if kind.endswith("LM") and name != "mamba"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes a random model of a kind, once."""
    folder, tokenizer = tmp_path_factory.mktemp("foreign"), train_byte_bpe(CORPUS, 288)
    tokenizer.add_special_tokens(["[MASK]"])

    def write(kind: str) -> Path:
        path = folder / kind
        if not path.exists():
            torch.manual_seed(0)
            name, settings = KINDS[kind]
            built = getattr(transformers, name)
            model = built(built.config_class(vocab_size=tokenizer.get_vocab_size(), **settings)).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.2 * torch.randn_like(parameter))
            model.save_pretrained(path)
            tokenizer.save(str(path / "tokenizer.json"))
        return path

    return write


def reference(path: Path) -> tuple[Any, torch.Tensor]:
    """Return the model as transformers loads it, and the token ids of the text."""
    kind = json.loads((path / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, kind).from_pretrained(path, attn_implementation="eager").eval()
    ids = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))(TEXT)["input_ids"]
    return model, torch.tensor([ids])


@torch.no_grad()
@pytest.mark.parametrize("kind", [name for name in KINDS if name not in ("t5", "bart", "mamba")])
def test_maps_are_the_attentions_of_transformers(saved: Callable[[str], Path], kind: str) -> None:
    predictor: Any = manyheads.load(saved(kind))
    assert type(predictor) is TransformersPredictor
    maps = predictor.attend(TEXT)
    model, ids = reference(saved(kind))
    theirs = model(ids, output_attentions=True).attentions
    assert [layer.number for layer in maps["self"]] == list(range(len(theirs)))
    for layer, weights in zip(maps["self"], theirs, strict=True):
        np.testing.assert_allclose(layer.weights, weights, atol=1e-6)
        assert layer.shares
        assert "cat" in layer.queries.tokens
    part = predictor.attend(TEXT, layers=[-1], heads=[2, 0])["self"]
    np.testing.assert_array_equal(part[0].weights, maps["self"][-1].weights[:, [2, 0]])
    assert (part[0].number, part[0].heads) == (len(theirs) - 1, (2, 0))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_an_encoder_decoder_has_three_kinds_of_maps(saved: Callable[[str], Path], kind: str) -> None:
    predictor: Any = manyheads.load(saved(kind))
    maps = predictor.attend(TEXT, target="the dog sat")
    model, ids = reference(saved(kind))
    target = predictor.tokenizer.encode("the dog sat").ids
    decoder_ids = torch.tensor([[model.config.decoder_start_token_id, *target[:-1]]])
    output = model(ids, decoder_input_ids=decoder_ids, output_attentions=True, output_hidden_states=True)
    theirs = {"encoder": output.encoder_attentions, "decoder": output.decoder_attentions}
    for axis, attentions in (theirs | {"cross": output.cross_attentions}).items():
        for layer, weights in zip(maps[axis], attentions, strict=True):
            np.testing.assert_allclose(layer.weights, weights, atol=1e-6)
    lens = predictor.lens(TEXT, target="the dog sat", top=3)
    np.testing.assert_allclose(lens.probabilities[-1], output.logits[0].softmax(-1).topk(3).values, rtol=1e-4)
    assert len(lens.layers) == len(output.decoder_hidden_states)
    written = predictor.attend(TEXT, axis="decoder")["decoder"][0]
    limit = 64 if kind == "t5" else 40
    generated = model.generate(ids, max_new_tokens=limit, do_sample=False)[0, 1:]
    assert len(written.queries) == len(generated)


@torch.no_grad()
@pytest.mark.parametrize("kind", WRITERS)
def test_the_lens_of_the_last_layer_is_the_prediction(saved: Callable[[str], Path], kind: str) -> None:
    predictor: Any = manyheads.load(saved(kind))
    lens = predictor.lens(TEXT, top=4)
    model, ids = reference(saved(kind))
    output = model(ids, output_hidden_states=True)
    np.testing.assert_allclose(lens.probabilities[-1], output.logits[0].softmax(-1).topk(4).values, rtol=1e-4)
    assert len(lens.layers) == len(output.hidden_states)
    assert (lens.kl[:-1].mean(1) > 1e-4).all()


@torch.no_grad()
def test_earlier_layers_pass_through_the_final_norm_and_the_head(saved: Callable[[str], Path]) -> None:
    lens = manyheads.load(saved("llama")).lens(TEXT, top=4)
    model, ids = reference(saved("llama"))
    states = model(ids, output_hidden_states=True).hidden_states
    for layer, state in enumerate(states[:-1]):  # by hand; the last of the library's states is normalized already
        logits = model.lm_head(model.model.norm(state))
        np.testing.assert_allclose(lens.probabilities[layer], logits[0].softmax(-1).topk(4).values, rtol=1e-4)
    lens = manyheads.load(saved("albert")).lens(TEXT, top=4)
    model, ids = reference(saved("albert"))
    for layer, state in enumerate(model(ids, output_hidden_states=True).hidden_states):  # without a final norm
        logits = model.predictions(state)
        np.testing.assert_allclose(lens.probabilities[layer], logits[0].softmax(-1).topk(4).values, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "albert", "camembert"])
def test_explanations_are_gradients_of_the_input_embeddings(saved: Callable[[str], Path], kind: str) -> None:
    """Input times gradient, by hand with the library's `inputs_embeds`; integrated gradients sum to the difference."""
    predictor: Any = manyheads.load(saved(kind))
    text = f"{TEXT} [MASK]" if kind == "albert" else TEXT
    found = predictor.explain(text, method="input-x-gradient")
    model, _ = reference(saved(kind))
    ids = torch.tensor([predictor.tokenizer.encode(text).ids])
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = model(inputs_embeds=embedded).logits
    logits = logits[0, -1] if kind != "camembert" else logits[0]  # the mask is the last token, too
    score = logits.max() - (logits.min() if len(logits) == 2 else 0)
    (slope,) = torch.autograd.grad(score, embedded)
    np.testing.assert_allclose(found.values, (embedded * slope).sum(-1)[0].detach(), rtol=1e-3, atol=1e-6)
    assert found.target == (
        model.config.id2label[int(logits.argmax())] if kind == "camembert"
        else predictor._words().name(int(logits.argmax()))
    )  # fmt: skip
    assert predictor.explain(text, steps=200).error < 0.02


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert cli.main([str(argument) for argument in arguments]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1), error
    return error


def test_the_commands_write_pages_and_other_verbs_are_refused(
    saved: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved("llama")
    assert cli.main(["attend", str(path), TEXT, "--out", str(tmp_path / "maps.html")]) == 0
    assert cli.main(["lens", str(path), TEXT, "--out", str(tmp_path / "lens.html")]) == 0
    assert (
        cli.main(["explain", str(path), TEXT, "--method", "input-x-gradient", "--out", str(tmp_path / "words.html")])
        == 0
    )
    assert capsys.readouterr().err == ""
    for arguments, message in (
        (("generate", path, TEXT), "does not support generate: use it with manyheads attend or lens or explain"),
        (("attend", path, ""), "the text is empty after tokenization"),
        (("attend", path, TEXT * 20), "tokens, the model takes 40: shorten it"),
        (("attend", path, TEXT, "--target", "x"), "target (--target) applies to encoder-decoders"),
        (("attend", path, TEXT, "--axis", "cross"), "cross"),
        (("attend", path, TEXT, "--layers", "7"), "self layer 7 does not exist: valid are 0 to 2"),
        (("attend", path, TEXT, "--heads", "9"), "head 9 does not exist: valid are 0 to 3"),
        (("attend", saved("mamba"), TEXT), "MambaForCausalLM returns no attention weights"),
        (("lens", saved("mamba"), TEXT), "the lens needs the embeddings and the states of all layers"),
        (("lens", saved("camembert"), TEXT), "CamembertForSequenceClassification predicts no words, so it has no lens"),
        (("explain", saved("t5"), TEXT), "T5ForConditionalGeneration has two inputs"),
        (("explain", saved("xlnet"), TEXT), "explanations need a model that embeds the tokens once, in their order"),
        (("explain", saved("albert"), TEXT), "the text has no mask: write [MASK] or <mask>"),
        (("explain", path, TEXT, "--target", "xylophone"), "'xylophone'"),
        (("explain", path, TEXT, "--method", "rollout"), "rollout does not apply to"),
        (("lens", path, TEXT, "--tuned", "a.safetensors"), "--tuned applies to"),
        (("lens", path, "--tune", path / "config.json", "--out", tmp_path / "a.safetensors"), "--tune applies to"),
        (("summary", path), "found LlamaForCausalLM ('model_type' is 'llama')"),
    ):
        assert message in fails(capsys, *arguments)
    assert cli.main(["attend", str(path), TEXT * 20, "--truncate", "--out", str(tmp_path / "maps.npz")]) == 0


def edited(path: Path, copy: Path, **settings: Any) -> Path:
    """Return a copy of a model directory with other settings in config.json."""
    copy.mkdir()
    for file in path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    config = json.loads((copy / "config.json").read_text()) | settings
    (copy / "config.json").write_text(json.dumps(config))
    return copy


class Bomb:
    """Object whose pickle writes a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return (eval, (f"open({str(self.file)!r}, 'w').close()",))


def test_no_code_and_no_pickle_is_loaded(saved: Callable[[str], Path], tmp_path: Path) -> None:
    """The rule of model directories holds for unknown architectures, too."""
    exploded = tmp_path / "exploded"
    bomb, code = pickle.dumps(Bomb(exploded)), f"open({str(exploded)!r}, 'w').close()\nclass Evil: ..."
    modeled = edited(saved("llama"), tmp_path / "code", auto_map={"AutoModelForCausalLM": "evil.Evil"})
    (modeled / "evil.py").write_text(code)
    with pytest.raises(UserError, match=r"config.json: 'auto_map' asks for code from the directory"):
        manyheads.load(modeled)
    pickled = edited(saved("llama"), tmp_path / "pickled")
    (pickled / "model.safetensors").unlink()
    (pickled / "pytorch_model.bin").write_bytes(bomb)
    with pytest.raises(UserError, match=r"pytorch_model.bin is a pickle, which can run code and is never loaded"):
        manyheads.load(pickled)
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        shards = dict.fromkeys(load_file(saved("llama") / "model.safetensors"), "evil.bin")
        (pickled / index).write_text(json.dumps({"weight_map": shards}))
        (pickled / "evil.bin").write_bytes(bomb)
        with pytest.raises(UserError, match="truncated or damaged|never loaded"):
            manyheads.load(pickled)
    both = edited(saved("llama"), tmp_path / "both")
    for name in ("pytorch_model.bin", "training_args.bin", "adapter_model.bin", "vocab.pkl", "modeling_llama.py"):
        (both / name).write_bytes(code.encode() if name.endswith("py") else bomb)
    (both / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"})
    )
    manyheads.load(both).attend(TEXT)
    assert not exploded.exists()


def test_convert_makes_a_safe_copy_of_an_unknown_architecture(
    saved: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pickled = edited(saved("llama"), tmp_path / "pickled")
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    assert cli.main(["convert", str(pickled), str(tmp_path / "safe")]) == 0
    maps = [manyheads.load(path).attend(TEXT)["self"][0].weights for path in (tmp_path / "safe", saved("llama"))]
    np.testing.assert_array_equal(*maps)
    (pickled / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    assert "was not loaded" in fails(capsys, "convert", pickled, tmp_path / "other")
    assert not (tmp_path / "exploded").exists()


def test_no_kernels_are_downloaded(
    saved: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that names an attention kernel of the Hub has no effect, and no connection is opened."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refuse)
    for name in ("_attn_implementation", "attn_implementation", "experts_implementation"):
        path = edited(saved("llama"), tmp_path / name, **{name: "evil/kernel"})
        np.testing.assert_array_equal(
            manyheads.load(path).attend(TEXT)["self"][0].weights,
            manyheads.load(saved("llama")).attend(TEXT)["self"][0].weights,
        )
    with pytest.raises(UserError, match="'quantization_config' asks for quantized weights"):
        manyheads.load(edited(saved("llama"), tmp_path / "quantized", quantization_config={"quant_method": "mxfp4"}))


def test_wrong_directories_are_reported_in_one_line(
    saved: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved("llama")
    missing = edited(path, tmp_path / "missing")
    tensors = load_file(path / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, missing / "model.safetensors")
    wider = edited(path, tmp_path / "wider", intermediate_size=64)
    odd = edited(path, tmp_path / "odd", num_attention_heads=3)
    unnamed = edited(path, tmp_path / "unnamed", architectures=None)
    function = edited(path, tmp_path / "function", architectures=["pipeline"])
    newer = edited(path, tmp_path / "newer", model_type="llama9")
    untokenized = edited(path, tmp_path / "untokenized")
    (untokenized / "tokenizer.json").unlink()
    for model, message in (
        (missing, "config.json and the weights do not match: expected model.norm.weight"),
        (wider, "transformers cannot build this model"),
        (odd, "transformers cannot build this model"),
        (unnamed, "found no architecture ('model_type' is 'llama')"),
        (function, "found pipeline ('model_type' is 'llama')"),
        (newer, "found LlamaForCausalLM ('model_type' is 'llama9')"),
        (untokenized, "found no tokenizer.json, so text cannot be read"),
    ):
        assert message in fails(capsys, "attend", model, TEXT)


def test_without_the_library_the_error_names_the_extra(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "transformers")
    with pytest.raises(
        MissingExtra, match=r"a model of type 'llama' needs transformers: pip install 'manyheads\[export\]'"
    ):
        manyheads.load(saved("llama"))


def test_the_hub_downloads_the_weights_of_an_unknown_architecture(
    saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[list[str]] = []

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str], **_: object) -> str:
        fetched.append(allow_patterns)
        return str(saved("llama"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert manyheads.load("hub:owner/name").attend(TEXT)["self"]
    assert directory.CONFIG in fetched[0]
    assert not any(pattern.endswith((".bin", ".py", ".pkl")) for patterns in fetched for pattern in patterns)
