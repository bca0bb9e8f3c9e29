"""``rung serve``: models over HTTP, as clients of OpenAI, Anthropic, ollama and llama.cpp expect them.

::

    client ── HTTP ──► App: match an endpoint, Gate, read the body       app.py, gate.py, http.py
                        │   a struct with bounds, translated             api/: one file per family of endpoints
                        ▼
                       ModelPool: models by name, loaded and unloaded    model_pool.py
                        │
                        ▼
                       EngineClient: requests by id, events back         engine_client.py, engines.py
                        │   frames over a socketpair                     protocol.py
    ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┼ ─ ─ ─ ─ ─ a process per model ─ ─ ─ ─
                        ▼
                       EngineChild: rung.load, Scheduler.advance         child/engine_child.py

- The HTTP process has no weights and imports neither NumPy nor the engine: an engine that is killed is started again,
  its requests get an error, and HTTP stays up.
- Endpoints know models as ``Engine`` and ``Pool`` (``engines``), wherever they are computed.
- ``protocol.Generate`` is the one internal request. A file of ``api`` translates a body to it and its events back; none
  of them knows of sequences or sockets.
- ``Endpoint`` rows of ``api`` say path, method, handler and whether a key is needed. ``Gate`` alone decides who may do
  what: by the matched row, the headers Host and Origin, and the key.
- Bodies are msgspec structs with bounds that refuse unknown fields.
"""
