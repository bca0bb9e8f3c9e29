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
    openapi,
    responses,
)
from rung.server.service import Endpoint

_DOCUMENTED: tuple[Endpoint, ...] = (
    *models.ENDPOINTS,
    *openai_chat.ENDPOINTS,
    *openai_completions.ENDPOINTS,
    *openai_embeddings.ENDPOINTS,
    *responses.ENDPOINTS,
    *openai_embeddings.RERANK_ENDPOINTS,
    *anthropic.ENDPOINTS,
    *ollama.ENDPOINTS,
    *ollama.STORE_ENDPOINTS,
    *llama_cpp.ENDPOINTS,
)
#: All that is served, the page apart.
ENDPOINTS = (*_DOCUMENTED, openapi.endpoint(_DOCUMENTED))
