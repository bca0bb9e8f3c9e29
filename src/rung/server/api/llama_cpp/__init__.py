"""llama.cpp's own endpoints: tokens of texts and back, templates, properties, and what is computed."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.core.version import __version__
from rung.server.api.llama_cpp import completion, slots
from rung.server.api.openai_chat import Message, continues
from rung.server.api.openai_fields import MOST_MESSAGES, TemplateKwargs
from rung.server.api.tools import Tool
from rung.server.http import json_response
from rung.server.protocol import Decode, Encode, Render
from rung.server.service import Call, Endpoint, post


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/tokenize``. ``add_special`` puts before the text what the model wants there; ``parse_special``
    reads names of control tokens as these; ``with_pieces`` adds the text of each token."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/detokenize``."""

    tokens: Annotated[list[Annotated[int, Meta(ge=0, le=2**31)]], Meta(max_length=2**20)]
    model: str | None = None


class TemplateRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/apply-template``. The text of a last message of the assistant begins the answer, as by
    ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MOST_MESSAGES)]
    model: str | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None


async def tokenize(call: Call, body: TokenizeRequest) -> Response:
    """Return the token ids of a text."""
    _, engine = call.service.engine(body.model)
    found = await engine.ask(Encode(text=body.content, special=body.parse_special, bos=body.add_special))
    if not body.with_pieces:
        return json_response({"tokens": found["ids"]})
    pieces = [{"id": number, "piece": _piece(data)} for number, data in zip(found["ids"], found["pieces"], strict=True)]
    return json_response({"tokens": pieces})


def _piece(data: bytes) -> str | list[int]:
    """Return the text of a token, or its bytes where they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def detokenize(call: Call, body: DetokenizeRequest) -> Response:
    """Return the text of token ids."""
    _, engine = call.service.engine(body.model)
    return json_response({"content": await engine.ask(Decode(tokens=body.tokens))})


async def apply_template(call: Call, body: TemplateRequest) -> Response:
    """Return the prompt that messages make."""
    _, engine = call.service.engine(body.model)
    messages, begins = [each.to_template() for each in body.messages], body.add_generation_prompt
    question = Render(
        messages=messages,
        tools=[each.to_template() for each in body.tools or ()],
        template_kwargs=body.chat_template_kwargs or {},
        begins_answer=begins is not False,
        continues_last=continues(messages, begins, body.continue_final_message),
        counts=False,
    )
    found = await engine.ask(question)
    return json_response({"prompt": found["text"]})


async def props(call: Call) -> Response:
    """Show properties of the first model."""
    name, engine = call.service.engine(None)
    known = await engine.wait_ready()
    return json_response(
        {
            "default_generation_settings": {"n_ctx": known.context},
            "model_path": known.name,
            "total_slots": known.parallel,
            "model_alias": name,
            "chat_template": known.template,
            "sandbox": known.sandbox,
            "build_info": f"rung {__version__}",
        }
    )


ENDPOINTS = (
    *completion.ENDPOINTS,
    *slots.LORA_ENDPOINTS,
    *slots.ENDPOINTS,
    post("/tokenize", TokenizeRequest, tokenize),
    post("/detokenize", DetokenizeRequest, detokenize),
    post("/apply-template", TemplateRequest, apply_template),
    Endpoint("GET", "/props", props),
)
