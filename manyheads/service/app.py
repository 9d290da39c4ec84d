"""ASGI application of the service: the table of routes, and the dispatch of requests to their handlers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from manyheads.files import JsonObject
from manyheads.service import attention_api, libretranslate, openai, page, schemas, vector_schemas, verbs
from manyheads.service.endpoint import Endpoint, Reply
from manyheads.service.middleware import AccessMiddleware, is_public_path, tokens_equal, unauthorized
from manyheads.service.openapi import document
from manyheads.service.request_body import JSON, parse_body, read_body
from manyheads.service.state import Service


async def health(service: Service, payload: None, request: Request) -> Reply:
    models = service.registry.all() if request.scope["state"]["allowed"] else []
    return schemas.Health(status="ok", models=[served.name for served in models])


async def metrics(service: Service, payload: None, request: Request) -> Reply:
    return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def runs(service: Service, payload: None, request: Request) -> Reply:
    return schemas.RunList(runs=await asyncio.to_thread(service.runs.cards))


async def curves(service: Service, payload: None, request: Request) -> Reply:
    return await asyncio.to_thread(service.runs.curves, request.path_params["name"])


@functools.cache
def _document(token: bool) -> JsonObject:
    return document(ENDPOINTS, token)


async def openapi(service: Service, payload: None, request: Request) -> Reply:
    return JSONResponse(_document(service.token is not None))


ENDPOINTS = (
    Endpoint("POST", "/v1/completions", openai.completions, "Continue texts (OpenAI)", schemas.CompletionRequest,
             schemas.Completion, mimes=(JSON, "text/event-stream")),
    Endpoint("POST", "/v1/chat/completions", openai.chat, "Refuse chats, with a hint (OpenAI)", schemas.ChatRequest),
    Endpoint("GET", "/v1/models", openai.models, "List the models (OpenAI)", None, schemas.ModelList),
    Endpoint("GET", "/v1/models/{name}", openai.model, "Describe one model (OpenAI)", None, schemas.ModelCard),
    Endpoint("POST", "/v1/embeddings", openai.embeddings, "Embed each text or image as a vector (OpenAI)",
             vector_schemas.EmbeddingRequest, vector_schemas.EmbeddingList),
    Endpoint("POST", "/v1/rerank", verbs.rerank, "Order documents by their relevance to a query (Jina, Cohere)",
             vector_schemas.RerankRequest, vector_schemas.Ranking),
    Endpoint("POST", "/translate", libretranslate.translate, "Translate texts (LibreTranslate)",
             schemas.TranslateRequest, schemas.Translated, form=True),
    Endpoint("GET", "/languages", libretranslate.languages, "List the languages of the translators (LibreTranslate)",
             schemas.LanguagesRequest, schemas.Language, many=True, form=True),
    Endpoint("POST", "/detect", libretranslate.detect, "Detect the language of a text (LibreTranslate)",
             schemas.DetectRequest, schemas.Detected, many=True, form=True),
    Endpoint("GET", "/frontend/settings", libretranslate.settings, "Return the settings of a page (LibreTranslate)",
             None, schemas.FrontendSettings),
    Endpoint("POST", "/nbest", verbs.nbest, "Return the best translations of each text, with their scores",
             schemas.NBestRequest, schemas.Results),
    Endpoint("POST", "/classify", verbs.classify, "Classify texts, pairs of texts, or images", schemas.ClassifyRequest,
             schemas.Results, images=True),
    Endpoint("POST", "/objects", verbs.objects, "Find objects in images", schemas.ObjectsRequest, schemas.Results,
             images=True),
    Endpoint("POST", "/tag", verbs.tag, "Tag words and find entities", schemas.TagRequest, schemas.Results),
    Endpoint("POST", "/fill", verbs.fill, "Predict words for the mask of each text", schemas.FillRequest,
             schemas.Results),
    Endpoint("POST", "/answer", verbs.answer, "Find spans of a context that answer a question", schemas.AnswerRequest,
             schemas.Results),
    Endpoint("POST", "/attend", attention_api.attend, "Return the attention maps for one input", schemas.AttendRequest,
             schemas.Attended),
    Endpoint("GET", "/runs", runs, "List the runs with learning curves", None, schemas.RunList),
    Endpoint("GET", "/runs/{name}", curves, "Return the learning curves of one run", None, schemas.Curves),
    Endpoint("GET", "/healthz", health, "Report that the service is running", None, schemas.Health),
    Endpoint("GET", "/metrics", metrics, "Return metrics for Prometheus", mimes=("text/plain",)),
    Endpoint("GET", "/openapi.json", openapi, "Return this document"),
    Endpoint("GET", "/", page.start, "Return the page", mimes=("text/html",)),
    Endpoint("GET", "/page/{name}", page.part, "Return a file of the page", mimes=page.MIMES),
)  # fmt: skip


def application(service: Service) -> ASGIApp:
    """Return the ASGI application of a service for the uvicorn server.

    When the server stops, the application first finishes all requests that it has accepted.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.image_queue.close)
        await asyncio.to_thread(service.registry.close)
        await asyncio.to_thread(service.attention_queue.close)

    def answering(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await _dispatch(service, endpoint, request)

        return answer

    routes = [
        Route(e.path.replace("{name}", "{name:path}"), answering(e), methods=[e.method]) for e in ENDPOINTS
    ]  # fmt: skip
    inner = Starlette(routes=routes, lifespan=lifespan)
    inner.router.redirect_slashes = False

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = inner
        handler = inner.router if scope["type"] != "http" else AccessMiddleware(inner.router, service)
        await handler(scope, receive, send)

    return outer


async def _dispatch(service: Service, endpoint: Endpoint, request: Request) -> Response:
    payload, allowed, limits = None, request.scope["state"]["allowed"], service.limits

    def key_matches(key: str) -> bool:
        return endpoint.form and service.token is not None and tokens_equal(service.token, key)

    if endpoint.request_schema is not None:
        allowed = allowed or key_matches(request.query_params.get("api_key", ""))
        max_bytes, hint = limits.body, ""
        if not allowed:
            max_bytes = min(max_bytes, limits.keyed_body)
            hint = ". A larger body requires the key in a header, Authorization: Bearer."
        body = await read_body(request, max_bytes, limits.body_seconds, hint)
        content_type = request.headers.get("content-type", "")
        if endpoint.method == "POST" or body:
            payload = parse_body(endpoint.request_schema, body, content_type, form=endpoint.form,
                                 images=endpoint.images, query=request.query_params)  # fmt: skip
        allowed = allowed or (isinstance(payload, schemas.KeyedBody) and key_matches(payload.api_key or ""))
    if not allowed and not is_public_path(endpoint.path):
        raise unauthorized()
    response = await endpoint.handler(service, payload, request)
    if isinstance(response, Response):
        return response
    if isinstance(response, list):
        return JSONResponse([item.model_dump() for item in response])
    return Response(response.model_dump_json(exclude_none=endpoint.form), media_type="application/json")
