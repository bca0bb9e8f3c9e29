"""Prompts of completions: texts, token ids, both in a row, and lists of them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from rung.server.api.openai_fields import MOST_PROMPTS, TokenId
from rung.server.errors import ApiError


class TextPrompt(msgspec.Struct, forbid_unknown_fields=True):
    """llama.cpp's object of a prompt; what it has beside the text (``multimodal_data``) is not read here."""

    prompt_string: str


_Parts = list[TokenId | str]
Prompts = str | TextPrompt | Annotated[list[str | TokenId | TextPrompt | _Parts], Meta(max_length=2**20)]


def prompts_of(prompt: Prompts, field: str = "prompt", most: int = MOST_PROMPTS) -> list[str | list[int | str]]:
    """Return the prompts of a ``field`` of a body, each a text, or token ids that may have texts among them. Raises
    ``ApiError`` for more than ``most``.

    A list with token ids in it is one prompt; a list of texts is several.
    """
    if not isinstance(prompt, list):
        return [_one(prompt)]
    if any(isinstance(each, int) for each in prompt) and all(isinstance(each, int | str) for each in prompt):
        return [[each for each in prompt if isinstance(each, int | str)]]
    several = [_one(each) for each in prompt if not isinstance(each, int)]
    if not several or len(several) != len(prompt) or len(several) > most or [] in several:
        raise ApiError(
            400,
            f"{field} is a text, token ids, or a list of up to {most:,} of them.",
            param=field,
            code="invalid_value",
        )
    return several


def _one(prompt: str | TextPrompt | list[int | str]) -> str | list[int | str]:
    return prompt.prompt_string if isinstance(prompt, TextPrompt) else prompt
