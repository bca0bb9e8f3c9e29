"""``rung.explain``: from a log or an exception and its environment to a cause, how sure, why, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rung.core.value import Value
from rung.diagnosis.evidence import Rule, Scene, scene_of
from rung.diagnosis.facts import environment_of, gather
from rung.diagnosis.fixing import Fix, causes, fixes_for
from rung.diagnosis.log import lines
from rung.diagnosis.reading import Hit, Reading, read
from rung.diagnosis.rules import RULES
from rung.diagnosis.score import probabilities, weights

#: Below this probability rung says that it does not know.
_LEAST = 0.25
#: From here on ``rung run`` is said to repair a cause by itself.
_SURE = 0.9
_SHOWN = 5


@dataclass(frozen=True)
class Evidence(Value):
    """One piece: a line of the log with its number, or a fact; ``source`` says where the knowledge is from."""

    line: int | None
    text: str
    fact: str
    source: str


@dataclass(frozen=True)
class Alternative(Value):
    """Another cause and its probability."""

    cause: str
    confidence: float


@dataclass(frozen=True)
class Explanation(Value):
    """``cause`` is a label of ``causes.toml`` or None; ``confidence`` the probability that it is right.

    ``alternatives`` are other causes, falling; ``automatic``: ``rung run`` repairs it by itself.
    """

    cause: str | None
    confidence: float
    fixes: tuple[Fix, ...]
    automatic: bool
    alternatives: tuple[Alternative, ...]
    evidence: tuple[Evidence, ...]

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        if self.cause is None:
            return "I do not know this one: nothing in it matches an error that I know."
        return causes()[self.cause].sentence


def explain(text_or_exception: str | BaseException, environment: Mapping[str, Any] | None = None) -> Explanation:
    """The cause of an error, from its log (text) or the exception itself.

    ``environment`` has the keys gpu, compute_capability, driver, cuda, torch, os, cpu and library_versions, each
    optional, as people write them. Raises ``UsageError`` for an environment that is no object.
    """
    if isinstance(text_or_exception, BaseException):
        text_or_exception = "".join(traceback.format_exception(text_or_exception))
    return explain_lines(lines([text_or_exception]), environment)


def explain_lines(numbered: Iterable[tuple[int, str]], environment: Mapping[str, Any] | None = None) -> Explanation:
    """As ``explain``, from (line number, line); goes through them once in bounded memory."""
    given = environment_of(environment)
    reading = read(numbered)
    facts = gather(given, [*reading.about, *(hit.line for hit in reading.hits)])
    scene = scene_of(reading, facts)
    rules = [rule for rule in RULES if rule.when(scene)]
    return _judge(reading, scene, rules, probabilities(weights(reading.hits, rules)))


def _judge(reading: Reading, scene: Scene, rules: list[Rule], found: Mapping[str, float]) -> Explanation:
    ranked = list(found.items())
    known = bool(ranked) and ranked[0][1] >= _LEAST
    others = ranked[1:] if known else ranked
    alternatives = [Alternative(cause, round(share, 4)) for cause, share in others[:4]]
    named = {item.cause for item in alternatives} | ({ranked[0][0]} if known else set())
    for label in causes():  # at least two, so that a reader sees what else there could be
        if len(alternatives) < 2 and label not in named:
            alternatives.append(Alternative(label, 0.0))
    if not known:
        return Explanation(None, 0.0, (), False, tuple(alternatives), _evidence(reading, scene, rules, None))
    cause, confidence = ranked[0]
    return Explanation(
        cause=cause,
        confidence=round(confidence, 4),
        fixes=fixes_for(cause, scene),
        automatic=causes()[cause].automatic and confidence >= _SURE,
        alternatives=tuple(alternatives),
        evidence=_evidence(reading, scene, rules, cause),
    )


def _evidence(reading: Reading, scene: Scene, rules: list[Rule], cause: str | None) -> tuple[Evidence, ...]:
    """What speaks for the cause: lines in their order, then facts, then what was contradicted."""
    found: dict[str, Hit] = {}
    for hit in reading.hits:
        if cause is None or hit.signature.causes.get(cause, 0) > 0:
            found.setdefault(hit.signature.id, hit)
    best = sorted(found.values(), key=lambda hit: -hit.signature.causes.get(cause or "", 0))[:_SHOWN]
    shown = [
        Evidence(hit.number, hit.line[:300], hit.signature.means, hit.signature.source)
        for hit in sorted(best, key=lambda hit: hit.number)
    ]
    shown += [
        Evidence(None, "", rule.says(scene), rule.source) for rule in rules if rule.causes.get(cause or "", 0) > 0
    ]
    shown += [Evidence(None, "", sentence, "the environment given") for sentence in scene.facts.contradictions]
    return tuple(shown)
