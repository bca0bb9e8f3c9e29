"""A request in the terms of a model: token ids, biases of logits, adapters, variables of its chat template."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from rung.core.errors import UsageError
from rung.engine.embeddings.encoder import EncoderModel
from rung.engine.model import Model
from rung.engine.scheduling.adapters import BASE
from rung.engine.tokenizers.tokenizer import infill_ids
from rung.models.adapters.roles import path_and_weight
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


#: Combinations of strengths that are kept, each with the memory of its adapters.
_KEPT = 4


class ScaledAdapters:
    """Name adapters of a model by their scales. ``sources`` are those that it was loaded with, ``DIR:0.5`` of half its
    weight."""

    def __init__(self, model: Model, sources: Sequence[str]) -> None:
        self._model, self._lock = model, threading.Lock()
        #: Path and scale of each, as they were loaded.
        self.loaded = [path_and_weight(each) for each in sources]
        self._names: OrderedDict[tuple[float, ...], str] = OrderedDict()

    def name(self, scales: Mapping[int, float] | None) -> str | None:
        """Return the name of the adapters by their places; those that are not in ``scales`` have none. None is what the
        model was loaded with. Any thread may call. Raises what ``Model.load_adapter`` raises."""
        if scales is None:
            return None
        if unknown := [index for index in scales if index >= len(self.loaded)]:
            raise UsageError(
                f"There is no adapter {unknown[0]}: there are {len(self.loaded)}.", code="value-out-of-range"
            )
        values = tuple(float(scales.get(index, 0.0)) for index in range(len(self.loaded)))
        if values == tuple(scale for _, scale in self.loaded):
            return None
        if not any(values):
            return BASE
        with self._lock:
            return self._load(values)

    def _load(self, values: tuple[float, ...]) -> str:
        if values in self._names:
            self._names.move_to_end(values)
            return self._names[values]
        if len(self._names) >= _KEPT:
            self._model.delete_adapter(self._names.popitem(last=False)[1])
        name = " ".join(map(str, values))
        sources = [f"{path}:{scale}" for (path, _), scale in zip(self.loaded, values, strict=True) if scale]
        self._model.load_adapter(sources, name)
        self._names[values] = name
        return name
