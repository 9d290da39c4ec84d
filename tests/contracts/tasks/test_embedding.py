"""Embeddings of texts and images: states as transformers computes them, tables, and scores on labeled data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from transformers import AutoModel

import manyheads
from manyheads import cli, directory
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.errors import UserError
from manyheads.models.presets import build, preset
from manyheads.tasks.embedding import label_scores

TEXTS = ["a fine film", "the plot is dull and slow"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    tokenizer = train_wordpiece(TEXTS * 3, 60)
    sizes = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 32, "max_positions": 16}
    labels = {"head": "sequence", "labels": ("bad", "good")}
    model = build(preset("bert/tiny", vocab=tokenizer.get_vocab_size(), **sizes, **labels))
    directory.save(folder := tmp_path_factory.mktemp("models") / "bert", model, tokenizer)
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    directory.save(folder := tmp_path_factory.mktemp("models") / "vit", build(preset("vit/2-8", labels=("a", "b"))))
    return folder


def sentence_model(
    bert: Path, folder: Path, pooling: dict[str, Any], modules: str = "Transformer Pooling Normalize", **sentence: Any
) -> Path:
    """Write a directory as sentence-transformers does; `sentence` is the content of sentence_bert_config.json."""
    loaded = directory.load(bert)
    loaded.save(folder)
    kinds = [f"sentence_transformers.models.{name}" for name in modules.split()]
    listed = [{"path": f"{i}_{kind.rpartition('.')[2]}" if i else "", "type": kind} for i, kind in enumerate(kinds)]
    prompts = {"prompts": {"query": "a film ", "other": None}, "default_prompt_name": sentence.pop("prompt", None)}
    (folder / "1_Pooling").mkdir()
    files = {"modules": listed, "1_Pooling/config": pooling, "sentence_bert_config": sentence}
    for name, value in {**files, "config_sentence_transformers": prompts}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = cli.main(["embed", *map(str, words)])
    return status, *capsys.readouterr()


@pytest.mark.parametrize("layer", [None, 0])
def test_vectors_of_texts_equal_pooled_states_of_transformers(bert: Path, layer: int | None) -> None:
    predictor, theirs = manyheads.load(bert), AutoModel.from_pretrained(bert).eval()
    for text, tokens in zip(TEXTS, predictor.embed(TEXTS, layer=layer, pool="tokens"), strict=True):
        ids = torch.tensor([predictor.tokenizer.encode(text).ids])
        with torch.no_grad():
            states = theirs(ids, output_hidden_states=True).hidden_states[-1 if layer is None else layer + 1][0].numpy()
        np.testing.assert_allclose(tokens.vector, states, atol=1e-5)
        assert tokens.tokens == len(states)
        mean, first = (predictor.embed([text], layer=layer, pool=pool)[0].vector for pool in (None, "first"))
        np.testing.assert_allclose(mean, states.mean(0) / np.linalg.norm(states.mean(0)), atol=1e-5)
        np.testing.assert_allclose(first, states[0] / np.linalg.norm(states[0]), atol=1e-5)


# The package sentence-transformers 6.2 gave the same vectors for these settings and for all-MiniLM-L6-v2, to 3e-6.
@pytest.mark.parametrize(
    ("mode", "pooling", "modules", "sentence"),
    [
        (
            "cls",
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
            "Transformer Pooling Normalize",
            {},
        ),
        ("max", {"pooling_mode": "max"}, "Transformer Pooling", {}),
        ("max", {"pooling_mode_max_tokens": True}, "Transformer Pooling Normalize", {"prompt": "query"}),
        ("mean", {}, "Transformer Pooling Normalize", {"max_seq_length": 6, "do_lower_case": True}),
    ],
)
def test_directories_of_sentence_transformers_are_pooled_alike(
    bert: Path, tmp_path: Path, mode: str, pooling: dict[str, Any], modules: str, sentence: dict[str, Any]
) -> None:
    prompt, limit = "a film " if "prompt" in sentence else "", sentence.get("max_seq_length", 16)
    folder = sentence_model(bert, tmp_path / "model", pooling, modules, **sentence)
    predictor, theirs = manyheads.load(folder), AutoModel.from_pretrained(bert).eval()
    found = [e.vector for e in predictor.embed(["A fine FILM", TEXTS[1]], truncate=True)]
    for text, vector in zip(["a fine film", TEXTS[1]], found, strict=True):
        ids = predictor.tokenizer.encode(prompt + text).ids
        ids = ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
        with torch.no_grad():
            states = theirs(torch.tensor([ids])).last_hidden_state[0].numpy()
        expected = {"cls": states[0], "max": states.max(0), "mean": states.mean(0)}[mode]
        scale = np.linalg.norm(expected) if "Normalize" in modules else 1
        np.testing.assert_allclose(vector, expected / scale, atol=1e-5)
    if limit < 16:
        with pytest.raises(UserError, match="the limit is 6"):
            predictor.embed([TEXTS[1]])
    directory.load(predictor.path).save(tmp_path / "copy")
    copied = manyheads.load(tmp_path / "copy")
    np.testing.assert_array_equal(copied.embed([TEXTS[0]])[0].vector, predictor.embed([TEXTS[0]])[0].vector)


def test_prompts_and_an_explicit_pooling_win_over_the_directory(bert: Path, tmp_path: Path) -> None:
    folder = sentence_model(bert, tmp_path / "model", {"pooling_mode": "cls"}, prompt="query")
    predictor, plain = manyheads.load(folder), manyheads.load(bert)
    expected = plain.embed([f"a film {TEXTS[0]}", TEXTS[0]], pool="first")
    np.testing.assert_array_equal(predictor.embed([TEXTS[0]])[0].vector, expected[0].vector)
    np.testing.assert_allclose(predictor.embed([TEXTS[0]], prompt="")[0].vector, expected[1].vector, atol=1e-6)
    (mean,) = plain.embed([TEXTS[0]])
    np.testing.assert_array_equal(predictor.embed([TEXTS[0]], prompt="other", pool="mean")[0].vector, mean.vector)
    with pytest.raises(UserError, match="prompt is 'passage': expected query, other"):
        predictor.embed([TEXTS[0]], prompt="passage")


@pytest.mark.parametrize(
    ("pooling", "modules", "problem"),
    [
        ({}, "Transformer Pooling Dense Normalize", "found Dense"),
        ({}, "Transformer", "found another order"),
        ({"pooling_mode_weightedmean_tokens": True}, "Transformer Pooling", "found weightedmean"),
        ({"pooling_mode": "lasttoken"}, "Transformer Pooling", "found lasttoken"),
        ({"pooling_mode": ["cls", "mean"]}, "Transformer Pooling", "found cls and mean"),
    ],
)
def test_unknown_modules_and_pooling_modes_are_refused_by_name(
    bert: Path, tmp_path: Path, pooling: dict[str, Any], modules: str, problem: str
) -> None:
    predictor = manyheads.load(sentence_model(bert, tmp_path / "model", pooling, modules))
    with pytest.raises(UserError, match=problem):
        predictor.embed(TEXTS)
    assert predictor.embed(TEXTS, pool="mean")[0].vector.shape == (16,)


def test_vectors_of_images_are_the_features_or_states(vit: Path) -> None:
    predictor = manyheads.load(vit)
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    pixels = torch.from_numpy(predictor.preprocessing.array(image))[None]
    with torch.no_grad():
        features, states = predictor.model.features(pixels)[0], predictor.model.all_states(pixels)[1][0]
    (pooled,), (tokens,) = predictor.embed([image]), predictor.embed([image], layer=0, pool="tokens")
    np.testing.assert_allclose(pooled.vector, features / features.norm(), atol=1e-5)
    np.testing.assert_allclose(tokens.vector, states, atol=1e-5)


def test_every_text_model_with_blocks_embeds(tmp_path: Path) -> None:
    tokenizer = train_wordpiece(TEXTS * 3, 60)
    sizes: dict[str, Any] = {"vocab": tokenizer.get_vocab_size(), "width": 16, "heads": 2, "max_positions": 16}
    for name, base, more in (
        ("gpt", "gpt2/nano", {"layers": 1, "head": "sequence", "labels": ("a", "b")}),
        ("textbook", "text-classifier/textbook", {}),
    ):
        directory.save(tmp_path / name, build(preset(base, **sizes, **more)), tokenizer)
        vectors = [e.vector for e in manyheads.load(tmp_path / name).embed(TEXTS)]
        assert [vector.shape for vector in vectors] == [(16,), (16,)]
        assert [float(np.linalg.norm(vector)) for vector in vectors] == pytest.approx([1, 1], abs=1e-5)


def test_tables_have_one_vector_per_row(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, bert, *TEXTS, "--out", tmp_path / "pooled.parquet") == (0, "", "")
    frame = pd.read_parquet(tmp_path / "pooled.parquet")
    assert frame["input"].tolist() == TEXTS
    expected = [e.vector for e in manyheads.load(bert).embed(TEXTS)]
    np.testing.assert_allclose(np.stack(frame["vector"]), expected, atol=1e-6)
    assert run(capsys, bert, *TEXTS, "--pool", "tokens", "--out", tmp_path / "tokens.npz")[0] == 0
    table = np.load(tmp_path / "tokens.npz")
    assert table["token"].tolist() == [
        *range(list(table["input"]).count(TEXTS[0])),
        *range(list(table["input"]).count(TEXTS[1])),
    ]
    assert table["vector"].shape == (len(table["token"]), 16)
    lines = run(capsys, bert, *TEXTS)[1].splitlines()
    np.testing.assert_allclose([[float(v) for v in line.split()] for line in lines], expected, atol=1e-4)


def test_labeled_data_are_scored(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "validation", "test"):
        rows = [f"{'good' if i % 2 else 'bad'}\t{TEXTS[i % 2]}" for i in range(20)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    status, out, error = run(capsys, bert, "--data", tmp_path, "--out", tmp_path / "v.npz")
    assert status == 0, error
    assert [line.split()[:2] for line in out.splitlines()] == [["knn_accuracy", "1.0000"], ["probe_accuracy", "1.0000"]]
    table = np.load(tmp_path / "v.npz")
    assert sorted({*table["split"].tolist()}) == ["test", "train"]
    assert {*table["label"].tolist()} == {"bad", "good"}
    for path in tmp_path.glob("*.tsv"):
        path.write_text(path.read_text().replace("label\ttext", "mark\treview"))
    status, again, error = run(capsys, bert, "--data", tmp_path, "--columns", "text=review,label=mark")
    assert (status, again) == (0, out), error
    arguments = (
        "--input",
        tmp_path / "test.tsv",
        "--output",
        tmp_path / "o.jsonl",
        "--columns",
        "text=review,label=mark",
    )
    assert "--columns label=: this model reads text only" in run(capsys, bert, *arguments)[2]


@pytest.mark.parametrize("label", ["0.5", '["a", "b"]'])
def test_only_classes_are_scored(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], label: str) -> None:
    (tmp_path / "train.jsonl").write_text(f'{{"text": "a", "label": {label}}}\n')
    status, _, error = run(capsys, bert, "--data", tmp_path)
    assert status == 2
    assert "embed scores vectors by classes only: expected one label per item" in error
    assert "target=" not in error


def test_scores_of_vectors_without_information_are_those_of_chance() -> None:
    random = np.random.default_rng(0)
    vectors, labels = random.normal(size=(400, 4)).astype(np.float32), [str(i % 2) for i in range(400)]
    scores = label_scores(vectors[:200], labels[:200], vectors[200:], labels[200:])
    assert all(0.35 < metric["value"] < 0.65 for metric in scores.values())
    with pytest.raises(UserError, match="expected two or more labels"):
        label_scores(vectors, ["x"] * 400, vectors, labels)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a", "--layer", 7], "layer is 7: expected 0 to 1"),
        (["a", "--out", "x.txt"], "expected a name with .npz or .parquet"),
        (["a", "--data", "x"], "--data scores one vector per item"),
        (["a " * 40], "pass --truncate|tokens, the model takes 16|cut it with"),
    ],
)
def test_bad_input_is_one_line(
    bert: Path, capsys: pytest.CaptureFixture[str], words: list[object], problem: str
) -> None:
    status, out, error = run(capsys, bert, *words)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert any(part in error for part in problem.split("|"))


def test_models_without_layers_of_tokens_are_refused(vit: Path, tmp_path: Path) -> None:
    predictor = manyheads.load(vit)
    with pytest.raises(UserError, match="pool is 'last': expected mean, first, max, tokens"):
        predictor.embed([Image.new("L", (8, 8))], pool="last")
    sizes = {"widths": (8,), "depths": (1,), "stem_width": 8, "image_size": 8}
    directory.save(tmp_path, build(preset("resnet/18", labels=("a", "b"), **sizes)))
    resnet = manyheads.load(tmp_path)
    assert resnet.embed([Image.new("RGB", (8, 8))])[0].vector.shape == (8,)
    with pytest.raises(UserError, match="has no layers of tokens"):
        resnet.embed([Image.new("RGB", (8, 8))], layer=0)
