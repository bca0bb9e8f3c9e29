"""Find, compare and plan a draft model: a smaller model that guesses tokens for a larger one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rung.core.errors import UsageError
from rung.core.types import Device, Plan, StepClass, StepDown
from rung.engine.open_model import open_any
from rung.engine.tokenizers.tokenizer import Tokenizer
from rung.models.card import ModelCard
from rung.models.cards.encoder import EncoderCard
from rung.models.cards.folder import NetworkCard
from rung.models.lookup import find_path
from rung.run.journal import Journal

if TYPE_CHECKING:
    from rung.engine.decoder import Decoder
    from rung.engine.scheduling.speculator import Draft

Card = ModelCard | EncoderCard | NetworkCard


def open_draft(
    name: str,
    larger: Card,
    *,
    offline: bool,
    progress: Callable[[str, int, int], None],
    on_note: Callable[[str], None],
) -> ModelCard:
    """Return the card of a draft model for a larger one.

    Raises ``UsageError`` where one of them is not built by rung or their vocabularies are not the same, and whatever
    finding and reading raise.
    """
    draft = _built_by_rung(open_any(find_path(name, offline=offline, progress=progress, on_note=on_note)), "be")
    _compare(_built_by_rung(larger, "have"), draft)
    return draft


def _built_by_rung(card: Card, verb: str) -> ModelCard:
    if not isinstance(card, ModelCard):
        raise UsageError(
            f"{card.name} cannot {verb} a draft model.",
            ["both must be models that write text, of an architecture that rung builds itself"],
        )
    return card


def _compare(card: ModelCard, draft: ModelCard) -> None:
    """Raise ``UsageError`` where a token of one vocabulary is another one in the other; padding may differ."""
    larger, smaller = Tokenizer.from_card(card), Tokenizer.from_card(draft)
    for token in range(min(larger.size, smaller.size)):
        if (mine := larger.piece(token)) != (theirs := smaller.piece(token)):
            raise UsageError(
                f"{draft.name} cannot guess for {card.name}: their vocabularies differ.",
                [f"token {token:,} is {mine!r} there and {theirs!r} in the draft model"],
                ["a smaller model of the same family, or the same model in fewer bits"],
            )


class DraftModel:
    """A draft model from its card to a decoder that guesses; ``nbytes`` are those of its plan, without the runtime."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.nbytes = 0

    def plan(self, context: int, make_plan: Callable[..., tuple[Plan, tuple[Device, ...]]]) -> int:
        """Plan it for the context of the larger model, or as much as it can have; return the bytes."""
        self._planned = make_plan(self.card, context=min(context, self.card.context or context))
        plan, _ = self._planned
        self.nbytes = sum(each.memory.total - each.memory.runtime for each in plan.placements)
        return self.nbytes

    def bind(
        self,
        bind: Callable[[ModelCard, Plan, Sequence[Device]], tuple[Decoder, Tokenizer]],
        larger: Decoder,
        journal: Journal,
    ) -> Draft:
        """Read and bind it with ``bind``; ``journal`` records where it fails."""
        from rung.engine.scheduling.speculator import Draft

        plan, devices = self._planned
        decoder, _ = bind(self.card, plan, devices)

        def failed(error: Exception) -> None:
            device = plan.placements[0].device
            journal.step(StepDown("draft", self.card.name, device, StepClass.BROKEN, str(error), "no draft model"))

        return Draft(decoder, min(decoder.vocabulary, larger.vocabulary), failed)
