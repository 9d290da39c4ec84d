"""Log-probabilities, images as files, embeddings of all encoders, HTML, and the hints for chat clients."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import torch
from PIL import Image

import manyheads
from manyheads import directory
from tests.support.services import Running, bert, client, drawn, language_model, serving, translator


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    language_model(folder / "lm")
    translator(folder / "en-de")
    bert(folder / "tell", head="sequence", labels=("en", "de"))
    vit = drawn("vit/ti4-32", image_size=32, patch=16, width=16, layers=1, heads=2, labels=("a", "b"))
    directory.save(folder / "photos", vit)
    return folder


@pytest.fixture(scope="module")
def running(models: Path) -> Iterator[Running]:
    names = ("lm", "en-de", "tell", "photos")
    with serving(models / "log", *(models / name for name in names), "--languages", "en-de=en:de") as service:
        yield service


@pytest.fixture
def ours(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_log_probabilities_equal_the_models(ours: openai.OpenAI, models: Path) -> None:
    own = manyheads.load(models / "lm")
    (ids,) = own.encode(["the cat"])
    for max_tokens in (0, 5):
        (choice,) = ours.completions.create(
            model="lm", prompt=ids, max_tokens=max_tokens, temperature=0, logprobs=3, echo=True
        ).choices
        found = choice.logprobs
        assert found is not None
        assert found.tokens is not None
        assert found.token_logprobs is not None
        assert found.top_logprobs is not None
        everything = [*ids]
        with torch.no_grad():
            for _ in range(max_tokens):
                everything.append(int(own.model(torch.tensor([everything]))[0, -1].argmax()))
            scores = own.model(torch.tensor([everything]))[0].log_softmax(-1)
        expected = [float(scores[i, token]) for i, token in enumerate(everything[1:])]
        assert found.token_logprobs[0] is None
        assert found.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
        assert len(found.tokens) == len(everything)
        for best, row in zip(found.top_logprobs[1:], scores, strict=False):
            assert max(best.values()) == pytest.approx(float(row.max()), abs=1e-4)
        assert found.text_offset == sorted(found.text_offset or [])


def test_log_probabilities_end_where_the_text_ends(ours: openai.OpenAI) -> None:
    whole = ours.completions.create(model="lm", prompt="the cat", max_tokens=12, temperature=0, logprobs=0).choices[0]
    assert whole.logprobs is not None
    assert whole.logprobs.tokens is not None
    assert len(whole.logprobs.tokens) == 12
    stop = whole.text[4:6]
    cut = ours.completions.create(
        model="lm", prompt="the cat", max_tokens=12, temperature=0, logprobs=0, stop=stop
    ).choices[0]
    assert cut.logprobs is not None
    assert cut.logprobs.tokens is not None
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert 0 < len(cut.logprobs.tokens) < 12


def test_images_arrive_as_base64_file_or_form(running: Running, models: Path) -> None:
    image = png()
    (expected,) = manyheads.load(models / "photos").classify([Image.open(io.BytesIO(image))], top=2)
    text = base64.b64encode(image).decode()
    with client(running) as http:
        answers = [
            http.post("/classify", json={"model": "photos", "images": [text], "top": 2}),
            http.post("/classify", json={"model": "photos", "images": [f"data:image/png;base64,{text}"], "top": 2}),
            http.post("/classify?model=photos&top=2", content=image, headers={"content-type": "image/png"}),
            http.post("/classify", files={"file": ("a.png", image)}, data={"model": "photos", "top": "2"}),
        ]
        for answer in answers:
            assert answer.status_code == 200, answer.text
            (labels,) = answer.json()["results"]
            assert [label["label"] for label in labels] == [label.label for label in expected]
            assert labels[0]["probability"] == pytest.approx(expected[0].probability, abs=1e-5)
        for content_type, body in (
            ("image/png", b"no image"), ("multipart/form-data; boundary=x", b"--y\r\n"), ("multipart/form-data", image),
            ("text/plain", image),
        ):  # fmt: skip
            refused = http.post("/classify?model=photos", content=body, headers={"content-type": content_type})
            assert refused.status_code in (400, 415), refused.text
            assert "error" in refused.json()


def test_every_encoder_embeds(ours: openai.OpenAI, models: Path) -> None:
    (text,) = manyheads.load(models / "tell").embed(["the cat"])
    found = ours.embeddings.create(model="tell", input="the cat", encoding_format="float").data[0].embedding
    assert found == pytest.approx(text.vector.tolist(), abs=1e-5)
    image = png()
    (picture,) = manyheads.load(models / "photos").embed([Image.open(io.BytesIO(image))])
    found = ours.embeddings.create(model="photos", input=base64.b64encode(image).decode()).data[0].embedding
    assert found == pytest.approx(picture.vector.tolist(), abs=1e-4)


def test_chat_clients_get_a_hint(ours: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="use /v1/completions"):
        ours.chat.completions.create(model="lm", messages=[{"role": "user", "content": "hello"}])


def test_html_keeps_its_tags_and_settings_are_served(running: Running) -> None:
    with client(running) as http:
        body = {"q": "<b>the cat</b> the dog", "source": "en", "target": "de", "format": "html"}
        html = http.post("/translate", json=body).json()["translatedText"]
        parts = http.post("/translate", json={**body, "q": ["the cat", "the dog"], "format": "text"}).json()
        settings = http.get("/frontend/settings").json()
        for nothing in ("<br>", ""):
            answer = http.post("/translate", json={**body, "q": nothing}, timeout=20).json()
            assert answer["translatedText"] == nothing
    first, second = (
        part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for part in parts["translatedText"]
    )
    assert html == f"<b>{first}</b> {second}"
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    assert settings["keyRequired"] is False


def test_the_log_has_lines_of_one_kind(running: Running) -> None:
    plain = [line for line in running.log.read_text().splitlines() if not line.startswith("{")]
    assert [line.split()[0] for line in plain] == ["serving"], plain
    assert any("found no preprocessor_config.json" in line["event"] for line in running.lines())
