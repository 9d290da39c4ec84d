"""The route /v1/rerank: the format of Jina and Cohere, for encoders and for models of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import manyheads
from manyheads.service.server import Settings, service_of
from tests.support.services import Ask, asked_of, bert

DOCUMENTS = ["the cat sat", "a dog on the mat", "the dog"]


def replies(path: Path, *bodies: dict[str, Any]) -> list[Any]:
    async def scene(ask: Ask) -> list[Any]:
        return [await ask(**body) for body in bodies]

    found: list[Any] = asked_of(service_of(Settings({"m": str(path)})), scene, "/v1/rerank")
    return found


@pytest.mark.parametrize("head", [{}, {"head": "sequence", "labels": ("no", "yes")}], ids=["encoder", "pairs"])
def test_documents_have_the_scores_and_the_order_of_the_predictor(tmp_path: Path, head: dict[str, Any]) -> None:
    path = bert(tmp_path / "m", **head)
    body = {"model": "m", "query": "the cat", "documents": [{"text": DOCUMENTS[0]}, *DOCUMENTS[1:]]}
    every, two = replies(path, body, {**body, "top_n": 2, "return_documents": False})
    expected = manyheads.load(path).rerank("the cat", DOCUMENTS)
    results = every.json()["results"]
    assert [result["index"] for result in results] == [ranked.index for ranked in expected]
    assert [result["document"]["text"] for result in results] == [ranked.document for ranked in expected]
    scores = [ranked.score for ranked in expected]
    assert [result["relevance_score"] for result in results] == pytest.approx(scores, abs=1e-5)
    assert [result["document"] for result in two.json()["results"]] == [None, None]


def test_wrong_requests_name_their_field(tmp_path: Path) -> None:
    path, right = bert(tmp_path / "m"), {"query": "the cat", "documents": DOCUMENTS}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"documents": []}, "documents"), ({"documents": ["a"] * 1001}, "documents"), ({"top_n": 0}, "top_n"),
        ({"documents": ["the", "cat " * 200]}, "documents.1"), ({"query": ""}, "query"), ({"limit": 1}, "limit"),
        ({"documents": ["a" * 1000] * 101}, "documents"),
    ]  # fmt: skip
    for reply, (_, field) in zip(replies(path, *({**right, **body} for body, _ in wrong)), wrong, strict=True):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field), reply.text
    three = bert(tmp_path / "three", head="sequence", labels=("a", "b", "c"))
    (reply,) = replies(three, {"model": "m", **right})
    assert "m cannot rerank: it can only classify, embed" in reply.json()["error"]["message"]
