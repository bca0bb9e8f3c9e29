"""Documents in the order of how near their embeddings are to that of a query, as Jina's clients and TEI's ask."""

from __future__ import annotations

import array
import math
import operator
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.server.api.openai_embeddings import vectors
from rung.server.errors import ApiError
from rung.server.http import json_response, unless_gone
from rung.server.service import Call, post

_Texts = Annotated[list[str], Meta(min_length=1, max_length=2048)]


class RerankRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/v1/rerank``: ``documents`` for Jina's form of an answer, ``texts`` for TEI's. ``top_n`` are listed,
    with their text where ``return_documents`` or ``return_text`` says so."""

    query: str
    documents: _Texts | None = None
    texts: _Texts | None = None
    model: Annotated[str, Meta(max_length=512)] | None = None
    top_n: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None

    def listed(self) -> list[str]:
        """Return the texts to order. Raises ``ApiError``."""
        if (self.documents is None) == (self.texts is None):
            raise ApiError(400, "Either documents or texts are ordered.", param="documents", code="invalid_value")
        return self.documents or self.texts or []


async def rerank(call: Call, body: RerankRequest) -> Response:
    """Order texts by how near they are to a query."""
    texts = body.listed()
    name, engine = call.service.engine(body.model)
    known = await unless_gone(call.request, engine.wait_ready())
    if known.writes:
        message = f"{name} writes text and orders none: serve an embedding model, such as all-MiniLM-L6-v2, for that."
        raise ApiError(400, message, param="model", code="model_not_supported")
    (query, *found), tokens = await unless_gone(call.request, vectors(engine, [body.query, *texts]))
    scores = [_cosine(query, each) for each in found]
    best = sorted(range(len(texts)), key=lambda number: (-scores[number], number))[: body.top_n]
    if body.documents is None:
        return json_response(
            [{"index": n, "score": scores[n]} | ({"text": texts[n]} if body.return_text else {}) for n in best]
        )
    results: list[dict[str, Any]] = [
        {"index": n, "relevance_score": scores[n]} | ({"document": {"text": texts[n]}} if body.return_documents else {})
        for n in best
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "model": name, "results": results, "usage": usage})


def _cosine(one: array.array[float], other: array.array[float]) -> float:
    """Return the cosine of the angle between two vectors, 0 where one of them has no length."""
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(map(operator.mul, one, other)) / lengths if lengths else 0.0


ENDPOINTS = tuple(
    post(path, RerankRequest, rerank) for path in ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
)
