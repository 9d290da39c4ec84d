"""Third-party clients, unmodified, against a service in a separate process; and plain requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
import torch
from libretranslatepy import LibreTranslateAPI
from transformers import AutoModel, AutoTokenizer

import manyheads
from manyheads import directory
from manyheads.service import libretranslate
from manyheads.service.schemas import LanguagesRequest
from manyheads.service.server import Settings, service_of
from tests.support.services import (
    Ask,
    Running,
    asked_of,
    bert,
    client,
    drawn,
    language_model,
    serving,
    translator,
)  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    language_model(folder / "lm")
    translator(folder / "en-de")
    bert(folder / "tell", head="sequence", labels=("en", "de"))
    bert(folder / "enc", head="none")
    bert(folder / "tagger", head="token", labels=("O", "B-X"))
    bert(folder / "reader", head="question")
    bert(folder / "mask", head="masked_lm")
    return folder


@pytest.fixture(scope="module")
def running(models: Path) -> Iterator[Running]:
    names = ("lm", "en-de", "tell", "enc", "tagger", "reader", "mask")
    with serving(models / "log", *(models / name for name in names), "--detect", "tell") as service:
        yield service


@pytest.fixture
def ours(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def test_models_are_listed(ours: openai.OpenAI) -> None:
    assert {model.id for model in ours.models.list()} == {"lm", "en-de", "tell", "enc", "tagger", "reader", "mask"}
    assert ours.models.retrieve("lm").id == "lm"
    with pytest.raises(openai.NotFoundError, match="found no model 'gone'"):
        ours.models.retrieve("gone")


def test_completions_equal_the_models(ours: openai.OpenAI, models: Path) -> None:
    own = manyheads.load(models / "lm")
    for temperature in (0.0, 1.0):
        found = ours.completions.create(
            model="lm", prompt=["the cat", "the dog"], max_tokens=12, temperature=temperature, seed=7
        )
        expected = own.generate(["the cat", "the dog"], max_tokens=12, temperature=temperature, seed=7)
        assert [f"the {p}{c.text}" for p, c in zip(("cat", "dog"), found.choices, strict=True)] == expected
        assert {choice.finish_reason for choice in found.choices} == {"length"}
        assert found.usage is not None
        assert found.usage.completion_tokens == 24


def test_a_stream_equals_the_text(ours: openai.OpenAI) -> None:
    how: dict[str, Any] = {"model": "lm", "prompt": "the cat", "max_tokens": 30, "seed": 3}
    whole = ours.completions.create(**how).choices[0]
    events = list(ours.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    pieces = [event.choices[0] for event in events if event.choices]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert len(pieces) > 5
    assert pieces[-1].finish_reason == whole.finish_reason
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 30


def test_stop_strings_and_several_choices(ours: openai.OpenAI, models: Path) -> None:
    how: dict[str, Any] = {"model": "lm", "max_tokens": 20, "seed": 3}
    whole = ours.completions.create(prompt="the cat", **how).choices[0].text
    stop = whole[5:7]
    cut = ours.completions.create(prompt="the cat", stop=stop, **how).choices[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"
    ids = manyheads.load(models / "lm").encode(["the cat"])[0]
    many = ours.completions.create(prompt=ids, n=3, echo=True, **how).choices
    assert many[0].text == "the cat" + whole
    assert len({choice.text for choice in many}) == 3


def test_embeddings_average_the_last_states(ours: openai.OpenAI, models: Path) -> None:
    texts = ["the cat sat", "the dog sat on the mat"]
    packed = ours.embeddings.create(model="enc", input=texts).data
    plain = ours.embeddings.create(model="enc", input=texts, encoding_format="float").data
    tokenizer, other = AutoTokenizer.from_pretrained(models / "enc"), AutoModel.from_pretrained(models / "enc").eval()
    for text, one, two in zip(texts, packed, plain, strict=True):
        with torch.no_grad():
            states = other(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy()
        np.testing.assert_allclose(two.embedding, states / np.linalg.norm(states), atol=1e-5)
        np.testing.assert_allclose(one.embedding, two.embedding, atol=1e-6)


def test_a_request_has_up_to_2048_texts(ours: openai.OpenAI, models: Path) -> None:
    texts = ["the cat sat", "the dog sat on the mat"] * 1024
    found = ours.embeddings.create(model="enc", input=texts)
    assert [entry.index for entry in found.data] == [*range(2048)]
    few = ours.embeddings.create(model="enc", input=texts[:2]).data
    for entry in found.data:
        np.testing.assert_allclose(entry.embedding, few[entry.index % 2].embedding, atol=1e-5)
    assert (
        found.usage.prompt_tokens
        == len(texts) // 2 * ours.embeddings.create(model="enc", input=texts[:2]).usage.prompt_tokens
    )
    faulty: list[tuple[Any, str]] = [
        ([*texts, "one more"], "at most 2048 items"),
        ([*texts[:1500], "the cat " * 3000], r"input\.1500: has .* tokens, the limit is"),
        (["the cat " * 20_000], "found 160,000 characters: expected at most 100,000"),
        ([[5, 6], [7]], "found token ids: expected texts"),
        (5, "found a number: expected a text"),
    ]
    for wrong, reason in faulty:
        with pytest.raises(openai.BadRequestError, match=reason):
            ours.embeddings.create(model="enc", input=wrong)


def test_libretranslate(running: Running, models: Path) -> None:
    theirs = LibreTranslateAPI(running.url)
    own = manyheads.load(models / "en-de")
    assert theirs.translate("the cat sat", "en", "de") == own.translate("the cat sat")
    assert theirs.languages() == [
        {"code": "en", "name": "English", "targets": ["en", "de"]},
        {"code": "de", "name": "German", "targets": ["de"]},
    ]
    labels = manyheads.load(models / "tell").classify("the cat", top=2)
    assert [each["language"] for each in theirs.detect("the cat")] == [label.label for label in labels]
    assert theirs.detect("the cat")[0]["confidence"] == pytest.approx(100 * labels[0].probability, abs=0.06)


def test_lines_lists_and_alternatives(running: Running, models: Path) -> None:
    own = manyheads.load(models / "en-de")
    one, two = own.translate(["the cat", "the dog sat"])
    with client(running) as http:
        asked = {"q": ["the cat\n\nthe dog sat", "the cat"], "source": "en", "target": "de", "alternatives": 1}
        found = http.post("/translate", json=asked).json()
        assert found["translatedText"] == [f"{one}\n\n{two}", one]
        assert found["alternatives"][1] == [own.nbest(["the cat"], 2)[0][1].text]
        same = http.post("/translate", json={"q": "the cat", "source": "de", "target": "de"}).json()
        assert same == {"translatedText": "the cat"}
        wrong = http.post("/translate", json={"q": "the cat", "source": "fr", "target": "de"})
        assert (wrong.status_code, wrong.json()) == (400, {"error": "source: fr is not supported: expected en"})
        long = {"q": "the cat sat on the mat " * 20, "source": "en", "target": "de"}
        told = http.post("/translate", json=long)
        assert told.json()["error"].endswith("split it, or cut it with truncate")
        assert http.post("/translate", json={**long, "truncate": True}).status_code == 200


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("classify", {"texts": ["the cat", "the dog"], "top": 2}),
        ("classify", {"texts": ["the cat", "the dog"], "pairs": ["a", "mat"]}),
        ("tag", {"texts": ["the cat sat", "a"]}),
        ("fill", {"texts": ["the [MASK] sat", "[MASK]"], "top": 3}),
        ("answer", {"question": "the cat", "context": "the cat sat on the mat"}),
        ("nbest", {"texts": ["the cat", "the dog"], "count": 2}),
    ],
)
def test_the_other_verbs_equal_the_models(running: Running, models: Path, path: str, asked: dict[str, Any]) -> None:
    with client(running) as http:
        found = http.post(f"/{path}", json=asked).json()
    name = {"classify": "tell", "tag": "tagger", "fill": "mask", "answer": "reader", "nbest": "en-de"}[path]
    own = manyheads.load(models / name)
    if path == "answer":
        expected = own.answer(asked["question"], asked["context"], 1)
        assert found["results"][0]["text"] == expected[0].text
    elif path == "tag":
        assert [[w["tag"] for w in r["words"]] for r in found["results"]] == [
            [word.tag for word in text.words] for text in own.tag(asked["texts"])
        ]
    else:
        key = {"classify": "label", "fill": "token", "nbest": "text"}[path]
        call: Any = {
            "classify": lambda: own.classify(asked["texts"], asked.get("pairs"), top=asked.get("top", 1)),
            "fill": lambda: own.fill(asked["texts"], 3), "nbest": lambda: own.nbest(asked["texts"], 2),
        }[path]  # fmt: skip
        assert [[one[key] for one in ranked] for ranked in found["results"]] == [
            [getattr(one, key) for one in ranked] for ranked in call()
        ]


@pytest.mark.parametrize(
    ("path", "asked", "field"),
    [
        ("answer", {"model": "reader", "question": " ", "context": "the cat"}, "question"),
        ("answer", {"model": "reader", "question": "the cat " * 99, "context": "the cat"}, "question"),
        ("answer", {"model": "reader", "question": "the cat", "context": " "}, "context"),
        ("v1/completions", {"model": "lm", "prompt": [[1], [999]]}, "prompt.1"),
        ("v1/completions", {"model": "lm", "prompt": [999]}, "prompt"),
        ("fill", {"texts": ["[MASK]" + " the" * 100] * 50, "top": 1000}, "top"),
    ],
)
def test_the_wrong_field_is_named(running: Running, path: str, asked: dict[str, Any], field: str) -> None:
    with client(running) as http:
        answer = http.post(f"/{path}", json=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_a_classifier_declares_what_it_reads(tmp_path: Path) -> None:
    """The API declares the inputs of a classifier, and exposes nothing about the machine."""
    for name, pairs in (("single", False), ("both", True)):
        path = bert(tmp_path / name, head="sequence", labels=("a", "b"))
        (path / "result.json").write_text(json.dumps({"data": {"pairs": pairs}}))
    vit = drawn("vit/ti4-32", image_size=32, patch=16, width=16, layers=1, heads=2, labels=("a", "b"))
    directory.save(tmp_path / "see", vit)
    texts, images = ["the cat"], ["AAAA"]
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("pairs", {"model": "single", "texts": texts, "pairs": texts}),
        ("images", {"model": "single", "texts": texts, "images": images}),
        ("texts", {"model": "single"}),
        ("pairs", {"model": "both", "texts": texts}),
        ("texts", {"model": "both", "pairs": texts}),
        ("pairs", {"model": "see", "images": images, "pairs": texts}),
        ("images", {"model": "see", "texts": texts}),
    ]

    async def scene(ask: Ask) -> Any:
        assert (await ask(model="single", texts=texts)).status_code == 200
        assert (await ask(model="both", texts=texts, pairs=texts)).status_code == 200
        return [await ask(**asked) for _, asked in wrong]

    names = ("single", "both", "see")
    answers = asked_of(service_of(Settings({name: str(tmp_path / name) for name in names})), scene)
    assert [(each.status_code, each.json()["error"]["param"]) for each in answers] == [(400, f) for f, _ in wrong]
    assert not [each.text for each in answers if str(tmp_path) in each.text or "--" in each.text]
    with pytest.raises(ValueError, match="expected a model that classifies single texts"):
        service_of(Settings({"both": str(tmp_path / "both")}, detector="both"))


def test_two_translators_for_one_pair_are_one_target() -> None:
    pairs = [SimpleNamespace(languages=("en", "de")), SimpleNamespace(languages=("en", "de"))]
    service: Any = SimpleNamespace(registry=SimpleNamespace(all=lambda: pairs))
    named: Any = asyncio.run(libretranslate.languages(service, LanguagesRequest(), None))  # type: ignore[arg-type]
    assert [(language.code, language.targets) for language in named] == [("en", ["en", "de"]), ("de", ["de"])]
