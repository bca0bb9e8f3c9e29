"""A request in the terms of a model: token ids, biases of logits, variables of its chat template."""

from __future__ import annotations

from rung.core.errors import UsageError
from rung.engine.embeddings.encoder import EncoderModel
from rung.engine.model import Model
from rung.engine.tokenizers.infill import infill_ids
from rung.server.protocol import Generate, Infill

#: What is added to the logit of a token that shall not come.
_FORBIDDEN = -100.0


def prompt_ids(model: Model, prompt: str | list[int | str] | Infill) -> list[int]:
    """Return the ids of a prompt. Raises ``ContextTooLong``, ``UsageError``."""
    if isinstance(prompt, Infill):
        return infill_ids(model.tokenizer, prompt.prefix, prompt.suffix, prompt.prompt, prompt.extra)
    if isinstance(prompt, str):
        return model.prompt_ids(prompt)
    return model.prompt_ids(ids_of(model, prompt))


def ids_of(model: Model, parts: list[int | str]) -> list[int]:
    """Return token ids that have texts among them."""
    ids: list[int] = []
    for number, each in enumerate(parts):
        if isinstance(each, int):
            ids.append(each)
        else:  # the first one stands where a text does; what encodes wants marks around a whole text only
            ids += model.tokenizer.encode(each, bos=not number and not isinstance(model, EncoderModel))
    return ids


def biases(model: Model, message: Generate) -> dict[int, float]:
    """Return the numbers that are added to logits: by ids, by texts, and to the tokens that end an answer."""
    found = dict(message.options.get("logit_bias") or {})
    for text, bias in message.text_bias:
        found |= dict.fromkeys(model.tokenizer.encode(text, bos=False), bias)
    return found | (dict.fromkeys(model.end_tokens, _FORBIDDEN) if message.ignore_end else {})


def template_kwargs(model: Model, message: Generate) -> dict[str, object]:
    """Return the variables of the template by which a model reasons as a request says. Raises ``UsageError`` where it
    cannot."""
    options, found = message.reasoning, dict[str, object]()
    if (options.enabled or options.effort) and not model.has_reasoning:
        raise UsageError(f"{model.card.name} does not reason: its chat template has no marks for that.")
    found |= thinking(options.enabled)
    if options.effort is not None:
        found["reasoning_effort"] = options.effort
    return {**found, **message.template_kwargs}


def thinking(enabled: bool | None) -> dict[str, bool]:
    """Return the variables by which templates have their model think or not; none for their own way."""
    return {} if enabled is None else {"enable_thinking": enabled, "thinking": enabled}
