"""Handlers for clients of OpenAI's API: completions, list of models, and embeddings of texts and images."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import struct
import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import StreamingResponse

from manyheads.data.text.text_faults import ItemError
from manyheads.files import JsonObject
from manyheads.generation import Sampling
from manyheads.service import schemas, vector_schemas
from manyheads.service.batching import Items
from manyheads.service.endpoint import Reply
from manyheads.service.errors import Refused
from manyheads.service.generation_worker import GenerationRequest, GenerationWorker, Piece
from manyheads.service.log_probabilities import log_probabilities
from manyheads.service.registry import Served
from manyheads.service.request_body import while_connected
from manyheads.service.state import Service
from manyheads.service.verbs import decode_images
from manyheads.tasks.loading import LoadedModel

SHORT = 2000  # maximum length in characters of a text that is tokenized in the event loop, not in a separate thread


async def completions(service: Service, payload: schemas.CompletionRequest, request: Request) -> Reply:
    served = service.registry.of(payload.model, "generate")
    prompts, ids = await _encode_prompts(served.predictor, payload)
    # If the model is reloaded while the text is tokenized, tokenize the text again with the new version.
    while served is not (current := service.registry.of(payload.model, "generate")):
        served = current
        prompts, ids = await _encode_prompts(served.predictor, payload)
    writer = served.worker
    assert isinstance(writer, GenerationWorker)
    max_tokens = 16 if payload.max_tokens is None else payload.max_tokens
    if not max_tokens and not payload.echo:
        raise Refused(400, "is 0: expected 1 or more, or echo", field="max_tokens", code="invalid_value")
    if payload.logprobs is not None and payload.stream:
        raise Refused(400, "cannot be streamed: leave out stream", field="logprobs", code="invalid_value")
    count = payload.n or 1
    seed = secrets.randbelow(schemas.MAX_SEED // 2) if payload.seed is None else payload.seed
    top_p = 1.0 if payload.top_p is None else payload.top_p
    sampling = Sampling(
        1.0 if payload.temperature is None else payload.temperature, payload.top_k, None if top_p == 1 else top_p,
        payload.repetition_penalty or 1.0,
    )  # fmt: skip
    stop = [payload.stop] if isinstance(payload.stop, str) else payload.stop or []
    texts, max_texts = len(ids) * count, service.limits.max_waiting
    if texts > max_texts:
        raise Refused(400, f"found {texts} texts: expected at most {max_texts}", field="n" if count > 1 else "prompt")
    seeds = [(seed + i) % 2**63 for i in range(len(ids) * count)]
    token_ids = [tokens for tokens in ids for _ in range(count)]
    generation = writer.submit(token_ids, sampling, max_tokens, stop, seeds, payload.logprobs)
    service.metrics.tokens.labels(served.name, "read").inc(sum(map(len, ids)))
    echoes = [prompt if payload.echo else "" for prompt in prompts for _ in range(count)]
    common: JsonObject = {"id": f"cmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": served.name}
    prompt_tokens = sum(map(len, ids))
    if payload.stream:
        usage = bool(payload.stream_options and payload.stream_options.include_usage)
        lines = _events(writer, generation, echoes, common, prompt_tokens if usage else None, service.limits.deadline)
        return StreamingResponse(lines, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    try:
        pieces = await while_connected(request, _collect_pieces(generation), service.limits.deadline)
        choices = [
            schemas.Choice(text=echo + "".join(p.text for p in text), index=i, finish_reason=text[-1].reason)
            for i, (echo, text) in enumerate(zip(echoes, pieces, strict=True))
        ]
        if payload.logprobs is not None:
            scored = asyncio.to_thread(_add_scores, served, choices, generation, payload.logprobs, bool(payload.echo))
            await while_connected(request, scored, service.limits.deadline)
    finally:
        writer.cancel(generation)  # This has no effect if all texts of the request are finished.
    return schemas.Completion(
        **common, choices=choices, usage=_usage(prompt_tokens, sum(text[-1].tokens for text in pieces))
    )


def _add_scores(
    served: Served, choices: list[schemas.Choice], generation: GenerationRequest, top: int, echo: bool
) -> None:
    """Add the log-probabilities of the tokens to each choice. If the prompt is echoed, its tokens are included.

    top  number of likeliest tokens that are listed for each token
    """
    assert isinstance(served.worker, GenerationWorker)
    for choice, text in zip(choices, generation.texts, strict=True):
        prompt = text.ids[: text.prompt]
        echoed = served.worker.prompt_scores(prompt, top) if echo else None
        choice.logprobs = log_probabilities(served.predictor.tokenizer, prompt, echoed, text.scores, choice.text)


async def _encode_prompts(
    predictor: LoadedModel, payload: schemas.CompletionRequest
) -> tuple[list[str], list[list[int]]]:
    """Return the prompts of a request, both as texts and as token ids."""
    prompts: Items = payload.prompt if isinstance(payload.prompt, list) else [payload.prompt]
    if isinstance(prompts[0], int):
        prompts = [prompts]
    if isinstance(prompts[0], str):
        long = sum(map(len, prompts)) > SHORT
        try:
            ids = await asyncio.to_thread(predictor.encode, prompts) if long else predictor.encode(prompts)
        except ItemError as error:
            field = f"prompt.{error.index}" if isinstance(payload.prompt, list) else "prompt"
            raise Refused(400, error.fault, field=field, code="invalid_value") from None
        return prompts, ids
    limit, vocabulary = predictor.model.config.max_positions, predictor.model.config.vocab
    for index, tokens in enumerate(prompts):
        field = "prompt" if prompts[0] is payload.prompt else f"prompt.{index}"
        if len(tokens) > limit:
            raise Refused(400, f"has {len(tokens):,} tokens, the model takes {limit:,}: shorten it", field=field)
        if max(tokens) >= vocabulary:
            raise Refused(400, f"found token {max(tokens)}: expected ids below {vocabulary:,}", field=field)
    return [predictor.tokenizer.decode(tokens) for tokens in prompts], prompts


def _usage(prompt_tokens: int, written: int) -> schemas.Usage:
    return schemas.Usage(prompt_tokens=prompt_tokens, completion_tokens=written, total_tokens=prompt_tokens + written)


async def _collect_pieces(generation: GenerationRequest) -> list[list[Piece]]:
    """Wait for the end of the generation, and return all pieces of each text."""
    pieces: list[list[Piece]] = [[] for _ in generation.texts]
    async for piece in _pieces(generation):
        pieces[piece.index].append(piece)
    return pieces


async def _pieces(generation: GenerationRequest) -> AsyncIterator[Piece]:
    left = len(generation.texts)
    for index, text in enumerate(generation.texts):
        if not text.limit:  # With max_tokens=0 nothing is generated; the response contains only the echoed prompt.
            left -= 1
            yield Piece(index, "", "length", 0)
    while left:
        piece = await generation.pieces.get()
        if isinstance(piece, BaseException):
            raise piece
        left -= piece.reason is not None
        yield piece


async def _events(
    writer: GenerationWorker,
    generation: GenerationRequest,
    echoes: list[str],
    common: JsonObject,
    prompt_tokens: int | None,
    seconds: float,
) -> AsyncIterator[str]:
    """Yield server-sent events, each with a piece of generated text.

    An error during generation is also sent as an event.
    """
    written = 0
    try:
        async with asyncio.timeout(seconds):
            for index, echo in enumerate(echoes):
                if echo:
                    yield _event(schemas.Completion(**common, choices=[schemas.Choice(text=echo, index=index)]))
            async with contextlib.aclosing(_pieces(generation)) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    written += piece.tokens if piece.reason else 0
                    choice = schemas.Choice(text=piece.text, index=piece.index, finish_reason=piece.reason)
                    yield _event(schemas.Completion(**common, choices=[choice]))
        if prompt_tokens is not None:
            yield _event(schemas.Completion(**common, choices=[], usage=_usage(prompt_tokens, written)))
        yield "data: [DONE]\n\n"
    except TimeoutError:
        yield _error_event(Refused(504, f"not finished within {seconds:g} seconds", code="timeout"))
    except Exception:  # The generation worker has already logged this error.
        yield _error_event(Refused(500, "the model failed"))
    finally:
        writer.cancel(generation)


def _event(chunk: schemas.Completion) -> str:
    return f"data: {chunk.model_dump_json()}\n\n"


def _error_event(refused: Refused) -> str:
    import json

    return f"data: {json.dumps(refused.document('/v1/completions'))}\n\n"


async def models(service: Service, payload: None, request: Request) -> Reply:
    return schemas.ModelList(data=[_card(served) for served in service.registry.all()])


async def model(service: Service, payload: None, request: Request) -> Reply:
    return _card(service.registry.of(request.path_params["name"], None))


def _card(served: Served) -> schemas.ModelCard:
    predictor = served.predictor
    return schemas.ModelCard(
        id=served.name, created=served.created, verbs=served.verbs, attends=served.attends,
        reads=predictor.reads, pairs=predictor.takes_pairs,
        labels=list(map(str, predictor.labels)),
        languages=list(served.languages) if served.languages else None,
        mask=predictor.mask or None,
        threshold=predictor.threshold,
    )  # fmt: skip


async def chat(service: Service, payload: schemas.ChatRequest, request: Request) -> Reply:
    raise Refused(404, "these models continue texts and have no chat format: use /v1/completions", code="no_chat")


async def embeddings(service: Service, payload: vector_schemas.EmbeddingRequest, request: Request) -> Reply:
    served = service.registry.of(payload.model, "embed")
    items: Items = [payload.input] if isinstance(payload.input, str) else payload.input
    if served.predictor.reads == "images":
        served, items = await decode_images(service, served, "embed", items, "input", request)
        found = await service.compute(request, served, served.predictor.embed_arrays, items, "input")
    else:
        method, parts = served.predictor.embed, service.split(items, "input")
        found = await service.compute_parts(request, served, method, parts, "input", truncate=payload.truncate)
    vectors, tokens = zip(*((vector.tolist(), count) for vector, count in found), strict=True)
    width = len(vectors[0])
    if payload.dimensions not in (None, width):
        raise Refused(
            400,
            f"found {payload.dimensions}: expected {width}, the dimension of this model's embeddings",
            field="dimensions",
        )
    packed = payload.encoding_format == "base64"
    data = [
        vector_schemas.Embedding(index=i, embedding=_base64(vector) if packed else vector)
        for i, vector in enumerate(vectors)
    ]
    return vector_schemas.EmbeddingList(data=data, model=served.name, usage=_usage(sum(tokens), 0))


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
