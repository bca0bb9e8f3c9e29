"""The endpoints, by family: each file translates bodies to ``protocol.Generate`` and answers back."""

from __future__ import annotations

from rung.server.api import (
    anthropic,
    llama_cpp,
    models,
    ollama,
    openai_chat,
    openai_completions,
    openai_embeddings,
    responses,
)
from rung.server.service import Endpoint

#: All that is served.
ENDPOINTS: tuple[Endpoint, ...] = (
    *models.ENDPOINTS,
    *openai_chat.ENDPOINTS,
    *openai_completions.ENDPOINTS,
    *openai_embeddings.ENDPOINTS,
    *responses.ENDPOINTS,
    *anthropic.ENDPOINTS,
    *ollama.ENDPOINTS,
    *llama_cpp.ENDPOINTS,
)
