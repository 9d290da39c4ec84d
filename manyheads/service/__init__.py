"""HTTP service for models, with dynamic batching and APIs for existing client programs.

protocol.py      uvicorn's protocol, with timeouts for slow clients
server.py        server processes, signals and restarts
middleware.py    access checks, request ids and logs
app.py           table of routes
request_body.py  request bodies, with limits on size and time
schemas.py       schemas of requests and responses
openapi.py       OpenAPI document, generated from the schemas
batching.py      batches of whole texts
generation_worker.py  batches of texts that are generated token by token
registry.py      loaded models, which are reloaded if their files change
openai.py, libretranslate.py, verbs.py  handlers of the routes
"""
