"""Model directories, ours and of other tools: configurations, weights, tokenizers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.data.text import tokenizers
from manyheads.data.text.tokenizers import load_tokenizer
from manyheads.interop.formats import TIMM
from manyheads.interop.tokenizer import read_tokenizers
from manyheads.interop.tutorial import read_vocabulary
from manyheads.interop.weights import read_pickled, read_safe, read_shapes
from manyheads.models.presets import FAMILIES, TRANSLATORS
from manyheads.tasks.loading import load
from papers.directions.spelling import spelled_words
from tests.stress.fuzzing.inputs import Files, read
from tests.stress.fuzzing.targets.target import Target

TEXTS = ["the cat sat on the mat, the dog sat on the cat and the mat — naïve café! " * 4]
BLOCK: dict[str, Any] = {"width": 8, "heads": 2, "layers": 1, "feed_forward": 8}
_SIDES = {"source_vocab": 48, "target_vocab": 48, "pad": 0, "end": 1, "start": 0, "max_positions": 32, "width": 8}
_BOTH = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 1), ("heads", 2), ("feed_forward", 8))
}
_SMALL = {"image_size": 8, "channels": 1, "labels": ("a", "b")}
_STAGES = {**_SMALL, "widths": (4, 8), "depths": (1, 1), "stem_width": 4, "stem": "3x3", "block": "basic"}
_UNIVERSAL = {"steps": 2, "heads": 2, "feed_forward": 8, "max_positions": 32, "width": 8}
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {**_SIDES, **_BOTH},
    "universal": {**_SIDES, **_UNIVERSAL},
    "seq2seq-rnn": {**_SIDES, "layers": 1},
    "rnn-attention": {**_SIDES, "hidden": 6},
    "gnmt": {**_SIDES, "hidden": 6, "layers": 2},
    "deep-att": {**_SIDES, "hidden": 6, "layers": 2},
    "convs2s": {**_SIDES, "hidden": 6, "encoder_layers": 1, "decoder_layers": 1},
    "bytenet": {**_SIDES, "hidden": 6, "sets": 1},
    "bert": {**BLOCK, "vocab": 54, "max_positions": 32, "head": "sequence", "labels": ("a", "b")},
    "elmo": {
        "width": 8,
        "hidden": 12,
        "filters": (2, 3),
        "max_characters": 9,
        "head": "sequence",
        "labels": ("a", "b"),
    },
    "text-classifier": {"vocab": 20, "width": 8, "head_width": 4, "feed_forward": 8, "positions": "concatenated"},
    "sequence-baseline": {"vocab": 20, "width": 8, "hidden": 8},
    "tfidf": {"vocab": 20},
    "gpt2": {**BLOCK, "vocab": 288, "end": 0, "max_positions": 32},
    "vit": {**BLOCK, **_SMALL, "patch": 4},
    "resnet": _STAGES,
    "efficientnet": {**_SMALL, "width": 0.1, "depth": 0.1},
    "regnet": {**_SMALL, "widths": (4, 8), "depths": (1, 1), "stem_width": 4, "group_width": 4},
    "bit": {**_SMALL, "widths": (32, 32), "depths": (1, 1), "stem_width": 4, "groups": 4},
    "nonlocal": {**_STAGES, "stages": (2,), "every": 1},
    "local-attention": {**_STAGES, "heads": 2, "attends": (2,), "window": 3},
    "sknet": _STAGES,
    "resnest": _STAGES,
    "gsa": {**_STAGES, "heads": 2},
    "conv-attention": {**_SMALL, "width": 8, "feed_forward": 8, "layers": 1, "heads": 4},
    "universal-sequence": {**_UNIVERSAL, "vocab": 288, "end": 0},
    "bert-features": {
        **BLOCK,
        "vocab": 54,
        "max_positions": 32,
        "layers": 4,
        "read": 2,
        "hidden": 8,
        "head": "token",
        "labels": ("O", "B-X"),
    },
    "directions": {**BLOCK, "vocab": 54, "max_positions": 32},
}


def tokenizer_for(family: str) -> Tokenizer | None:
    if family in ("bert", "bert-features", "directions"):
        return tokenizers.train_wordpiece(TEXTS, 54)
    if family in ("gpt2", "universal-sequence"):
        return tokenizers.train_byte_bpe(TEXTS, 288)
    if family == "elmo":
        return spelled_words()
    if family in TRANSLATORS:
        return tokenizers.train_bpe(TEXTS, 48)
    return (
        tokenizers.train_word_level(TEXTS, 20) if family in ("text-classifier", "sequence-baseline", "tfidf") else None
    )


def saved(path: Path, family: str, **sizes: Any) -> Files:
    """Save a tiny model and return the files of its directory. `sizes` override the default sizes."""
    torch.manual_seed(0)
    row = FAMILIES[family]
    model = row.model_class()(row.configuration()(**SIZES[family] | sizes)).eval()
    directory.save(path, model, tokenizer_for(family))
    return read(path)


def picture(side: int = 9) -> Image.Image:
    return Image.linear_gradient("L").resize((side, side))


def _all(folder: Path) -> list[Files]:
    return [saved(folder / family, family) for family in SIZES]


def _model(folder: Path) -> None:
    """Loaded as a user does, and used once."""
    try:
        predictor = load(folder)
    except ValueError as error:
        if "makes no predictions by itself" not in str(error):
            raise
        return
    text = "the cat sat"
    verbs: dict[str, Callable[[], object]] = {
        "translate": lambda: predictor.translate([text]),
        "generate": lambda: predictor.generate(text, max_tokens=3, temperature=0.0),
        "classify": lambda: predictor.classify([text if predictor.reads == "texts" else picture()]),
        "tag": lambda: predictor.tag([text]),
        "embed": lambda: predictor.embed([text]),
    }
    for verb, use in verbs.items():
        if hasattr(predictor, verb):
            use()
            return


def _foreign(folder: Path) -> list[Files]:
    """Return directories in the formats of other tools, with their additional files and sharded weights."""
    gpt = dict(saved(folder / "gpt2", "gpt2"))
    size = int.from_bytes(gpt["model.safetensors"][:8], "little")
    names = [name for name in json.loads(gpt["model.safetensors"][8 : 8 + size]) if name != "__metadata__"]
    shards = _sharded(folder / "gpt2", names)
    vit = dict(saved(folder / "vit", "vit"))
    processor = {
        "size": {"height": 8, "width": 8},
        "resample": 3,
        "image_mean": [0.5],
        "image_std": [0.5],
        "crop_pct": 0.9,
        "do_center_crop": True,
        "crop_size": 8,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
    }
    vit["preprocessor_config.json"] = json.dumps(processor).encode()
    return [shards, vit, _timm()]


def _sharded(path: Path, names: list[str]) -> Files:
    tensors = load_file(path / "model.safetensors")
    parts = {f"model-0000{n}-of-00002.safetensors": names[n - 1 :: 2] for n in (1, 2)}
    files = {file: save({name: tensors[name] for name in held}) for file, held in parts.items()}
    index = {"metadata": {"total_size": 1}, "weight_map": {name: file for file, held in parts.items() for name in held}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    others = {name: content for name, content in read(path).items() if name != "model.safetensors"}
    return others | files


def _timm() -> Files:
    """A ViT as timm writes it."""
    torch.manual_seed(0)
    row = FAMILIES["vit"]
    sizes = {**SIZES["vit"], "width": 6, "heads": 3, "channels": 3, "feed_forward": 24}
    model = row.model_class()(row.configuration()(**sizes)).eval()
    tensors = {name: tensor.contiguous() for name, tensor in TIMM["vit"].tensors_of(model).items()}
    shape = {"input_size": [3, 8, 8], "crop_pct": 0.9, "interpolation": "bicubic"}
    pretrained = {**shape, "mean": [0.5] * 3, "std": [0.5] * 3}
    settings = {"architecture": "vit_tiny_patch4_8", "num_classes": 2, "pretrained_cfg": pretrained}
    return {"config.json": json.dumps(settings).encode(), "model.safetensors": save(tensors)}


def _weights(folder: Path) -> None:
    read_shapes(folder)
    read_safe(folder)


def _weight_files(folder: Path) -> list[Files]:
    keep = ("model", "config.json")
    whole = saved(folder / "tfidf", "tfidf")
    gpt = _foreign(folder / "foreign")[0]
    return [{name: content for name, content in files.items() if name.startswith(keep)} for files in (whole, gpt)]


def _pickles(_: Path) -> list[Files]:
    made = io.BytesIO()
    torch.save({"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)}, made)
    return [{"pytorch_model.bin": made.getvalue()}]


def _pickled(folder: Path) -> None:
    read_pickled(folder)


def _tokenizers(_: Path) -> list[Files]:
    made = (
        tokenizers.train_wordpiece(TEXTS, 54),
        tokenizers.train_byte_bpe(TEXTS, 270),
        tokenizers.train_character(TEXTS),
        tokenizers.train_bpe(TEXTS, 48),
        tokenizers.train_unigram(TEXTS, 40),
        tokenizers.train_word_level(TEXTS, 20),
        tokenizers.train_words(TEXTS, 20, "en", begin=True),
    )
    return [{"tokenizer.json": tokenizer.to_str().encode()} for tokenizer in made]


def _tokenizer(folder: Path) -> None:
    load_tokenizer(folder / "tokenizer.json")
    tokenizer = read_tokenizers(folder, "gpt2", ["tokenizer.json"], None, None, (10**6, 10**6)).source
    _encoded(tokenizer)


def _encoded(tokenizer: Tokenizer | None) -> None:
    if tokenizer is None:
        return
    text = "The cat sat—on the  mat, naïve! " + "a" * 30 + " " * 30
    tokenizer.decode(tokenizers.encode_all(tokenizer, [text, ""])[0])


def _vocabularies(_: Path) -> list[Files]:
    from tests.support.opus import ENGLISH, sentencepiece_model

    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s"])}
    lines = "\n".join(words).encode()
    gpt = json.loads(tokenizers.train_byte_bpe(TEXTS, 270).to_str())["model"]
    merges = "#version: 0.2\n" + "\n".join(" ".join(m) if isinstance(m, list) else m for m in gpt["merges"])
    pair = {"vocab.json": json.dumps(gpt["vocab"]).encode(), "merges.txt": merges.encode()}
    roberta = {
        **gpt["vocab"],
        **{t: len(gpt["vocab"]) + i for i, t in enumerate(("<s>", "</s>", "<unk>", "<pad>", "<mask>"))},
    }
    spm = sentencepiece_model(ENGLISH, 60)
    pegasus = sentencepiece_model(ENGLISH, 60, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    gpt1 = {**pair, "vocab.json": json.dumps({**gpt["vocab"], "<unk>": len(gpt["vocab"])}).encode()}
    marian = {
        "source.spm": spm,
        "target.spm": spm,
        "vocab.json": json.dumps({"</s>": 0, "<unk>": 1, "▁a": 2, "▁dog": 3, "<pad>": 4}).encode(),
    }
    about: list[dict[str, Any]] = [
        {},
        {"model_max_length": 512, "unk_token": "<unk>"},
        {"added_tokens_decoder": {"5": {"content": "the", "special": True}}},
    ]
    kinds = [
        ("bert", {"vocab.txt": lines}),
        ("gpt2", pair),
        ("openai-gpt", gpt1),
        ("roberta", {**pair, "vocab.json": json.dumps(roberta).encode()}),
        ("pegasus", {"spiece.model": pegasus}),
        ("marian", marian),
    ]
    return [
        {
            **files,
            "kind.txt": kind.encode(),
            "tokenizer_config.json": json.dumps(
                {**about[i % 2], "offset": 10} if kind == "pegasus" else about[i % 2] if kind != "bert" else {}
            ).encode(),
            "special_tokens_map.json": b"{}",
            "added_tokens.json": b"{}",
        }
        for i, (kind, files) in enumerate(kinds)
    ]


def _vocabulary(folder: Path) -> None:
    """As a model directory of that family reads it."""
    kind = folder / "kind.txt"
    family = kind.read_text(errors="replace").strip() if kind.is_file() else "bert"
    about = (
        directory._read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else None
    )
    pair = read_tokenizers(folder, family, ["tokenizer.json"], about, None, (10**6, 10**6))
    _encoded(pair.source)
    _encoded(pair.target)


def _tutorial(folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        read_vocabulary(file)


WORDS = ["<unk>", "<pad>", "<bos>", "<eos>", "a", "b"]
TARGETS = {
    "model-directory": Target(_all, _model),
    "foreign-directory": Target(_foreign, _model),
    "weights": Target(_weight_files, _weights),
    "pickles": Target(_pickles, _pickled),
    "tokenizer": Target(_tokenizers, _tokenizer),
    "vocabularies": Target(_vocabularies, _vocabulary),
    "tutorial": Target(
        lambda _: [
            {"a.json": json.dumps(WORDS).encode(), "b.txt": "\n".join(WORDS).encode()},
            {"a.json": json.dumps({word: i for i, word in enumerate(WORDS)}).encode()},
        ],
        _tutorial,
    ),
}
