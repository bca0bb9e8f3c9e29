"""Hold what is known of a language model that the lean decoder does not build, and transformers does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rung.core.types import EMPTY
from rung.core.value import FrozenDict, Value
from rung.models.cards.folder import folder_name, optional, sampling, template, tokenizer_of
from rung.models.files.jsonfile import SMALL
from rung.models.networks.values import Component
from rung.models.settings import token_ids


@dataclass(frozen=True)
class NetworkCard(Value):
    """A folder of such a model; the fields that ``ModelCard`` has too mean the same.

    ``component`` is what its network is made of, under the names of its parameters; ``network`` the class of
    transformers that builds it; ``why`` says why the lean decoder does not. ``context`` is 0 where nothing limits it.
    """

    name: str
    path: str
    component: Component
    network: str
    why: str
    tokenizer: str
    chat_template: str | None
    end_tokens: tuple[int, ...]
    bos_token: int | None
    add_bos: bool
    defaults: FrozenDict[Any] = EMPTY
    metadata: FrozenDict[Any] = field(default=EMPTY, compare=False)

    @property
    def context(self) -> int:
        """The most tokens that it holds."""
        return self.component.shape.context


def network_card(folder: Path, component: Component, network: str, why: str, ends: Any, bos: Any) -> NetworkCard:
    """The card of a folder; ``ends`` and ``bos`` are the ids that its configuration has, by name or by default."""
    generation = optional(folder / "generation_config.json", SMALL)
    settings = optional(folder / "tokenizer_config.json")
    tokenizer, vocabulary = tokenizer_of(folder), component.shape.vocabulary
    known = {token for value in (generation.get("eos_token_id"), ends) for token in token_ids(value, vocabulary)}
    return NetworkCard(
        name=folder_name(folder),
        path=str(folder),
        component=component,
        network=network,
        why=why,
        tokenizer=tokenizer,
        chat_template=template(folder, settings),
        end_tokens=tuple(sorted(known)),
        bos_token=next(iter(token_ids(bos, vocabulary)), None),
        add_bos=settings.get("add_bos_token") is True,
        defaults=sampling(generation),
    )
