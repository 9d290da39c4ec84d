"""Reasons of refused requests: the one of the alternative that the request means."""

import json
from typing import Any

import pytest

from manyheads.service import schemas, vector_schemas
from manyheads.service.errors import Refused
from manyheads.service.request_body import parse_body

MANY = ["a"] * 129
ONE, COMPLETION, TRANSLATION = {"model": "m"}, {"model": "m", "prompt": "a"}, {"target": "de"}


@pytest.mark.parametrize(
    ("schema", "body", "field", "reason"),
    [
        (vector_schemas.EmbeddingRequest, {**ONE, "input": ["a"] * 2049}, "input", "at most 2048 items"),
        (vector_schemas.EmbeddingRequest, {**ONE, "input": []}, "input", "at least 1 item"),
        (vector_schemas.EmbeddingRequest, {**ONE, "input": [[5, 6]]}, "input", "check_embedding_ctx_length=False"),
        (vector_schemas.EmbeddingRequest, {**ONE, "input": [5, 6]}, "input", "^found token ids: expected texts"),
        (vector_schemas.EmbeddingRequest, {**ONE, "input": ["a", 5]}, "input.1", "valid string"),
        (vector_schemas.EmbeddingRequest, {**ONE, "input": 5}, "input", "^found a number: expected a text"),
        (schemas.CompletionRequest, {**ONE, "prompt": MANY}, "prompt", "at most 128 items"),
        (schemas.CompletionRequest, {**ONE, "prompt": []}, "prompt", "at least 1 item"),
        (schemas.CompletionRequest, {**ONE, "prompt": ["a", 5]}, "prompt.1", "valid string"),
        (schemas.CompletionRequest, {**ONE, "prompt": [5, -1]}, "prompt.1", "greater than or equal to 0"),
        (schemas.CompletionRequest, {**ONE, "prompt": [[5], [-1]]}, "prompt.1.0", "greater than or equal to 0"),
        (schemas.CompletionRequest, {**COMPLETION, "stop": ["a"] * 5}, "stop", "at most 4 items"),
        (schemas.CompletionRequest, {**COMPLETION, "stop": ""}, "stop", "at least 1 character"),
        (schemas.CompletionRequest, {**COMPLETION, "stop": ["a", ""]}, "stop.1", "at least 1 character"),
        (schemas.TranslateRequest, {**TRANSLATION, "q": MANY}, "q", "at most 128 items"),
        (schemas.TranslateRequest, {**TRANSLATION, "q": []}, "q", "at least 1 item"),
        (schemas.CompletionRequest, {**COMPLETION, "max_token": 5}, "max_token", "did you mean max_tokens?"),
        (schemas.CompletionRequest, {**COMPLETION, "stream_options": {"use": True}}, "stream_options",
         "unknown field; valid are include_usage, include_obfuscation"),
        (schemas.TagRequest, {"texts": ["a", 5, 6]}, "texts.1", "valid string"),
    ],
)  # fmt: skip
def test_the_reason_is_that_of_the_alternative_that_is_meant(schema: Any, body: Any, field: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        parse_body(schema, json.dumps(body).encode(), "application/json")
    assert refused.value.field == field
