"""Models behind HTTP: requests are batched as they arrive, by interfaces that existing clients speak.

protocol.py  uvicorn's, with bounds on slow clients        server.py    processes, signals
gate.py      who may ask, ids, logs                        app.py       the routes, what a service is made of
reading.py   bodies within their bounds                    schemas.py   what a request may say; openapi.py tells it
batching.py  whole texts, together                         writing.py   texts that are written token by token
registry.py  the models, and new versions of them
openai.py, libretranslate.py, verbs.py: what is asked for, and answered
"""
