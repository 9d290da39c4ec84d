"""HTTP service for models, with dynamic batching and interfaces for existing clients.

protocol.py      uvicorn's protocol, with timeouts for slow clients
server.py        worker processes and signals
middleware.py    access checks, request ids and logs
app.py           table of routes
request_body.py  request bodies, with limits on size and time
schemas.py       schemas of requests and responses
openapi.py       OpenAPI document, from the schemas
batching.py      batches of whole texts
generation_worker.py  batches of texts that are generated token by token
registry.py      models, and their new versions
openai.py, libretranslate.py, verbs.py  handlers of the routes
"""
