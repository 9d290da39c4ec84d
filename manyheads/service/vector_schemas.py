"""Schemas of embeddings in OpenAI's format, and of reranking in the format of Jina and Cohere."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from manyheads.errors import UserError
from manyheads.service.schemas import Answer, Body, ModelName, Truncate, Usage

MAX_RANKED = 1000  # maximum number of documents in a request, as in Cohere's service
MAX_EMBEDDED = 2048  # maximum number of texts in a request for embeddings, as in OpenAI's service


def _refuse_numbers(value: object) -> object:
    """Raise UserError for a number, and for token ids, which clients make with the vocabulary of another model."""
    if isinstance(value, int | float):
        raise UserError("found a number: expected a text, or a list of texts")
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, int | list):
        raise UserError(
            "found token ids: expected texts, because this model has another vocabulary. "
            "In LangChain's OpenAIEmbeddings, set check_embedding_ctx_length=False"
        )
    return value


class EmbeddingRequest(Body):
    model: str
    input: Annotated[
        str | Annotated[list[str], Field(min_length=1, max_length=MAX_EMBEDDED)], BeforeValidator(_refuse_numbers)
    ]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int | None, Field(ge=1)] = None
    truncate: Truncate = False
    user: str | None = None


class Document(Body):
    text: str


class RerankRequest(Body):
    """Request to order documents by their relevance to a query, in the format of Jina and Cohere."""

    model: ModelName = None
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=MAX_RANKED)]
    top_n: Annotated[int | None, Field(ge=1)] = None
    return_documents: bool | None = True
    truncate: Truncate = False


class RankedDocument(Answer):
    """Document with its index in the request; a higher score is better."""

    index: int
    relevance_score: float
    document: Document | None = None


class Ranking(Answer):
    """Documents in the order of their relevance, the most relevant first."""

    model: str
    results: list[RankedDocument]


class Embedding(Answer):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(Answer):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage
