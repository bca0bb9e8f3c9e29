"""OpenAI's embeddings, and documents in the order of how near theirs are to that of a query (``rerank``)."""

from __future__ import annotations

import array
import base64
import math
import operator
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.server.api.shared import Prompts, prompts_of
from rung.server.engines import Engine
from rung.server.errors import ApiError
from rung.server.http import json_response, unless_gone
from rung.server.protocol import Embed
from rung.server.service import Call, post

#: Texts at most, as OpenAI has it.
_MOST_TEXTS = 2048


class EmbeddingsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/v1/embeddings``; ``user`` changes nothing. Texts among token ids, and objects with
    ``prompt_string``, are llama.cpp's."""

    input: Prompts
    model: Annotated[str, Meta(max_length=512)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


async def vectors(
    engine: Engine, texts: Sequence[str | list[int | str]], *, truncate: bool = False
) -> tuple[list[array.array[float]], int]:
    """Return the embedding of each text, or list of token ids with texts among them, f32, and how many tokens they have
    together. Raises ``ApiError``."""
    found = await engine.ask(Embed(texts=list(texts), truncate=truncate))
    listed = []
    for data in found["vectors"]:
        vector = array.array("f", data)
        if sys.byteorder == "big":
            vector.byteswap()
        listed.append(vector)
    return listed, found["tokens"]


async def embeddings(call: Call, body: EmbeddingsRequest) -> Response:
    """Return embeddings of texts."""
    name, engine = call.service.engine(body.model)
    texts = prompts_of(body.input, "input", _MOST_TEXTS)
    found, tokens = await unless_gone(call.request, vectors(engine, texts))
    packs = body.encoding_format == "base64"
    data = [
        {
            "object": "embedding",
            "index": number,
            "embedding": base64.b64encode(each.tobytes()).decode() if packs else list(each),
        }
        for number, each in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "data": data, "model": name, "usage": usage})


ENDPOINTS = (
    post("/v1/embeddings", EmbeddingsRequest, embeddings),
    post("/embeddings", EmbeddingsRequest, embeddings),
)


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


RERANK_ENDPOINTS = tuple(
    post(path, RerankRequest, rerank) for path in ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
)
