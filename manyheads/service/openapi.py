"""Generation of the OpenAPI document from the table of routes and from the schemas that validate requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from manyheads import __version__
from manyheads.files import JsonObject
from manyheads.service.endpoint import Endpoint
from manyheads.service.errors import LIBRETRANSLATE
from manyheads.service.request_body import FORM, JSON, MULTIPART

REFERENCE = "#/components/schemas/{model}"
FAULTS = {
    400: "the request is invalid; `param` names the field", 401: "missing or invalid token",
    403: "the request comes from a page of another origin", 404: "the model does not exist",
    408: "the request did not arrive in time",
    413: "the body is too large", 415: "the content type is not supported",
    421: "the Host header names another machine",
    429: "the queue is full; see Retry-After", 500: "the service failed; see its log",
    503: "the service is shutting down", 504: "the response took too long",
}  # fmt: skip
_TEXT = {"type": ["string", "null"]}
_FAULT = {
    "type": "object", "required": ["error"], "properties": {"error": {
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "param": _TEXT, "code": _TEXT},
    }},
}  # fmt: skip
_LIBRE_FAULT = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}


def document(endpoints: Sequence[Endpoint], token: bool) -> JsonObject:
    """Return the OpenAPI document of the service, the content of /openapi.json.

    token  True if clients must send an access token
    """
    classes = (schema for e in endpoints for schema in (e.request_schema, e.response_schema) if schema)
    schemas: list[tuple[type[BaseModel], JsonSchemaMode]] = [(schema, "validation") for schema in classes]
    names, definitions = models_json_schema(schemas, ref_template=REFERENCE)
    paths: JsonObject = {}
    for e in endpoints:
        error_schema = _LIBRE_FAULT if e.path in LIBRETRANSLATE else _FAULT
        response: JsonObject = {"type": "string"}
        if e.response_schema is not None:
            response = names[e.response_schema, "validation"]
            response = {"type": "array", "items": response} if e.many else response
        content = {mime: {"schema": response if mime == JSON else {"type": "string"}} for mime in e.mimes}
        operation: JsonObject = {
            "summary": e.summary, "operationId": e.method.lower() + re.sub(r"\W+", "_", e.path).rstrip("_"),
            "responses": {
                "200": {"description": "the answer", "content": content},
                **{str(status): {"description": why, "content": {JSON: {"schema": error_schema}}}
                   for status, why in FAULTS.items()},
            },
        }  # fmt: skip
        if e.request_schema is not None and e.method == "POST":
            request_body = {"schema": names[e.request_schema, "validation"]}
            content = {JSON: request_body, FORM: request_body} if e.form else {JSON: request_body}
            if e.images:
                content |= {MULTIPART: request_body, "image/*": {"schema": {"type": "string", "format": "binary"}}}
            operation["requestBody"] = {"required": True, "content": content}
        if "{name}" in e.path:
            operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
        paths.setdefault(e.path, {})[e.method.lower()] = operation
    components: JsonObject = {"schemas": definitions.get("$defs", {})}
    specification: JsonObject = {
        "openapi": "3.1.0", "info": {"title": "manyheads", "version": __version__}, "paths": paths,
        "components": components,
    }  # fmt: skip
    if token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        specification["security"] = [{"token": []}]
    return specification
