"""Handlers for OpenAI's clients: completions, models and embeddings."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from manyheads.data.text.text_faults import ItemError
from manyheads.generation import Sampling
from manyheads.service import schemas
from manyheads.service.errors import Refused
from manyheads.service.generation_worker import Piece, Writer, Writing
from manyheads.service.request_body import while_there
from manyheads.service.state import Service

SHORT = 2000  # maximum number of characters to tokenize in the event loop; longer texts use a thread


async def completions(service: Service, asked: schemas.CompletionRequest, request: Request) -> Response | Any:
    served = service.registry.of(asked.model, "generate")
    prompts, ids = await _encoded(served.predictor, asked)
    # a new version was loaded during tokenization
    while served is not (current := service.registry.of(asked.model, "generate")):
        served = current
        prompts, ids = await _encoded(served.predictor, asked)
    writer = served.worker
    assert isinstance(writer, Writer)
    count = asked.n or 1
    seed = secrets.randbelow(schemas.LARGEST_SEED // 2) if asked.seed is None else asked.seed
    top_p = 1.0 if asked.top_p is None else asked.top_p
    sampling = Sampling(
        1.0 if asked.temperature is None else asked.temperature, asked.top_k, None if top_p == 1 else top_p,
        asked.repetition_penalty or 1.0,
    )  # fmt: skip
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    texts, most = len(ids) * count, service.limits.most_waiting
    if texts > most:
        raise Refused(400, f"found {texts} texts: expected at most {most}", field="n" if count > 1 else "prompt")
    seeds = [(seed + i) % 2**63 for i in range(len(ids) * count)]
    chosen = [tokens for tokens in ids for _ in range(count)]
    writing = writer.submit(chosen, sampling, asked.max_tokens or 16, stop, seeds)
    service.metrics.tokens.labels(served.name, "read").inc(sum(map(len, ids)))
    echoed = [prompt if asked.echo else "" for prompt in prompts for _ in range(count)]
    about: dict[str, Any] = {"id": f"cmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name}
    prompt_tokens = sum(map(len, ids))
    if asked.stream:
        usage = bool(asked.stream_options and asked.stream_options.include_usage)
        lines = _events(writer, writing, echoed, about, prompt_tokens if usage else None, service.limits.deadline)
        return StreamingResponse(lines, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    try:
        pieces = await while_there(request, _collected(writing), service.limits.deadline)
    finally:
        writer.cancel(writing)  # has no effect on a finished request
    choices = [
        schemas.Choice(text=echo + "".join(p.text for p in mine), index=i, finish_reason=mine[-1].reason)
        for i, (echo, mine) in enumerate(zip(echoed, pieces, strict=True))
    ]
    return schemas.Completion(
        **about, choices=choices, usage=_usage(prompt_tokens, sum(mine[-1].tokens for mine in pieces))
    )


async def _encoded(predictor: Any, asked: schemas.CompletionRequest) -> tuple[list[str], list[list[int]]]:
    """Return the prompts as texts and as token ids."""
    given: Any = asked.prompt if isinstance(asked.prompt, list) else [asked.prompt]
    if isinstance(given[0], int):
        given = [given]
    if isinstance(given[0], str):
        long = sum(map(len, given)) > SHORT
        try:
            ids = await asyncio.to_thread(predictor.encode, given) if long else predictor.encode(given)
        except ItemError as error:
            field = f"prompt.{error.index}" if isinstance(asked.prompt, list) else "prompt"
            raise Refused(400, error.fault, field=field, code="invalid_value") from None
        return given, ids
    room, vocabulary = predictor.model.config.max_positions, predictor.model.config.vocab
    for index, tokens in enumerate(given):
        field = "prompt" if given[0] is asked.prompt else f"prompt.{index}"
        if len(tokens) > room:
            raise Refused(400, f"has {len(tokens):,} tokens, the model takes {room:,}: shorten it", field=field)
        if max(tokens) >= vocabulary:
            raise Refused(400, f"found token {max(tokens)}: expected ids below {vocabulary:,}", field=field)
    return [predictor.tokenizer.decode(tokens) for tokens in given], given


def _usage(prompt_tokens: int, written: int) -> schemas.Usage:
    return schemas.Usage(prompt_tokens=prompt_tokens, completion_tokens=written, total_tokens=prompt_tokens + written)


async def _collected(writing: Writing) -> list[list[Piece]]:
    """Return all pieces of each text."""
    pieces: list[list[Piece]] = [[] for _ in writing.texts]
    async for piece in _pieces(writing):
        pieces[piece.index].append(piece)
    return pieces


async def _pieces(writing: Writing) -> AsyncIterator[Piece]:
    left = len(writing.texts)
    while left:
        piece = await writing.pieces.get()
        if isinstance(piece, BaseException):
            raise piece
        left -= piece.reason is not None
        yield piece


async def _events(
    writer: Writer,
    writing: Writing,
    echoed: list[str],
    about: dict[str, Any],
    prompt_tokens: int | None,
    seconds: float,
) -> AsyncIterator[str]:
    """Yield server-sent events, each with a piece of text. An error during generation is also sent as an event."""
    written = 0
    try:
        async with asyncio.timeout(seconds):
            for index, echo in enumerate(echoed):
                if echo:
                    yield _event(schemas.Completion(**about, choices=[schemas.Choice(text=echo, index=index)]))
            async with contextlib.aclosing(_pieces(writing)) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    written += piece.tokens if piece.reason else 0
                    choice = schemas.Choice(text=piece.text, index=piece.index, finish_reason=piece.reason)
                    yield _event(schemas.Completion(**about, choices=[choice]))
        if prompt_tokens is not None:
            yield _event(schemas.Completion(**about, choices=[], usage=_usage(prompt_tokens, written)))
        yield "data: [DONE]\n\n"
    except TimeoutError:
        yield _failed(Refused(504, f"not finished within {seconds:g} seconds", code="timeout"))
    except Exception:  # already logged by the worker
        yield _failed(Refused(500, "the model failed"))
    finally:
        writer.cancel(writing)


def _event(chunk: schemas.Completion) -> str:
    return f"data: {chunk.model_dump_json()}\n\n"


def _failed(refused: Refused) -> str:
    import json

    return f"data: {json.dumps(refused.document('/v1/completions'))}\n\n"


async def models(service: Service, asked: None, request: Request) -> Any:
    return schemas.ModelList(data=[_card(served) for served in service.registry.all()])


async def model(service: Service, asked: None, request: Request) -> Any:
    return _card(service.registry.of(request.path_params["name"], None))


def _card(served: Any) -> schemas.ModelCard:
    predictor = served.predictor
    return schemas.ModelCard(
        id=served.name, created=served.created, verbs=served.verbs, attends=served.attends,
        reads=getattr(predictor, "reads", "texts"), pairs=getattr(predictor, "takes_pairs", False),
        labels=list(getattr(predictor, "labels", ())), languages=list(served.languages) if served.languages else None,
        mask=getattr(predictor, "mask", None),
    )  # fmt: skip


async def embeddings(service: Service, asked: schemas.EmbeddingRequest, request: Request) -> Any:
    served = service.registry.of(asked.model, "embed")
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    vectors, tokens = zip(
        *await service.computed(request, served, "embed", texts, "input", truncate=asked.truncate), strict=True
    )
    width = len(vectors[0])
    if asked.dimensions not in (None, width):
        raise Refused(
            400,
            f"found {asked.dimensions}: expected {width}, the dimension of this model's embeddings",
            field="dimensions",
        )
    packed = asked.encoding_format == "base64"
    data = [
        schemas.Embedding(index=i, embedding=_base64(vector) if packed else vector) for i, vector in enumerate(vectors)
    ]
    return schemas.EmbeddingList(data=data, model=served.name, usage=_usage(sum(tokens), 0))


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
