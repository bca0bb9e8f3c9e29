"""OpenAI's embeddings."""

from __future__ import annotations

import array
import base64
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.server.api.shared.prompts import Prompts, prompts_of
from rung.server.engines import Engine
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
