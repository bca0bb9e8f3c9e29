"""Rules that weigh facts about device and software for and against causes. One row a rule: when, for what, in words.

Weights are nats, as in the signatures; a negative one speaks against. A rule sees the signatures that a log holds and
the facts of log and environment together (``Scene``); its sentence is shown as evidence, with its source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rung.core.value import Value
from rung.diagnosis.facts import Facts
from rung.diagnosis.gpus import capability_text
from rung.diagnosis.logs.mentions import Mentions, mentions_of
from rung.diagnosis.logs.reading import Hit, Reading

#: Matched lines whose words count.
_MATCHED = 20


@dataclass(frozen=True)
class Scene:
    """Hold what a rule looks at: ``ids`` of the signatures found, their captured ``words``, and the facts.

    ``text`` is all that was kept of the log, ``said`` what stood in the matched lines and in the last ones,
    ``ending`` the last ones alone, ``named`` the lines that may hold names. ``went_on``: what it holds was survived.
    """

    facts: Facts
    hits: Sequence[Hit]
    ids: frozenset[str]
    words: Mapping[str, str]
    text: str
    excerpt: str
    ending: str
    went_on: bool = False
    named: Sequence[str] = ()

    @functools.cached_property
    def mentions(self) -> Mentions:
        """The script, package, model and files that the log names."""
        return mentions_of(self.named)

    def has(self, *ids: str) -> bool:
        """Return whether one of these signatures was found."""
        return any(name in self.ids for name in ids)

    def below(self, capability: int) -> bool:
        """Return whether the GPU is known to be older than that compute capability (major * 10 + minor)."""
        return self.facts.capability is not None and self.facts.capability < capability

    def from_(self, capability: int) -> bool:
        """Return whether the GPU is known to have at least that compute capability."""
        return self.facts.capability is not None and self.facts.capability >= capability

    @property
    def vendor(self) -> str:
        """The maker of the GPU, empty when unknown."""
        return self.facts.gpu.vendor if self.facts.gpu else ""

    def says(self, pattern: str) -> bool:
        """Return whether the lines that were kept hold a pattern."""
        return re.search(pattern, self.text) is not None

    def says_last(self, pattern: str) -> bool:
        """Return whether the last lines, each kind once, hold a pattern, which may go over the end of a line."""
        return re.search(pattern, self.ending) is not None

    @property
    def raised_in_package(self) -> bool:
        """Return whether the last place that a traceback names is in an installed package."""
        paths: list[str] = re.findall(r'File "([^"\n]+)", line', self.excerpt)
        return bool(paths) and re.search(r"(?:site|dist)-packages", paths[-1]) is not None

    def about(self, pattern: str) -> bool:
        """Return whether those lines, or what the environment says, hold a pattern."""
        return self.says(pattern) or re.search(pattern, f"{self.facts.os} {self.facts.stated}") is not None


@dataclass(frozen=True)
class Evidence(Value):
    """One piece: a line of the log with its number, or a fact; ``source`` says where the knowledge is from."""

    line: int | None
    text: str
    fact: str
    source: str


@dataclass(frozen=True)
class Rule:
    """``when`` it applies, the ``causes`` it weighs, and a sentence; {gpu}, {cc} and {archs} are filled in."""

    id: str
    when: Callable[[Scene], bool]
    causes: Mapping[str, float]
    sentence: str
    source: str

    def says(self, scene: Scene) -> str:
        """The sentence with the facts of this scene."""
        facts = scene.facts
        gpu = facts.gpu.name if facts.gpu else "the GPU"
        cc = capability_text(facts.capability) if facts.capability is not None else "?"
        archs = " ".join(dict.fromkeys(capability_text(a) for a in facts.compiled_for))
        return self.sentence.format(gpu=gpu, cc=cc, archs=archs)


def scene_of(reading: Reading, facts: Facts) -> Scene:
    """The scene of a log that was read."""
    words: dict[str, str] = {}
    for hit in reading.hits:
        for key, value in hit.facts.items():
            words.setdefault(key, value)
    matched = dict.fromkeys(hit.line for hit in reading.hits)
    text = "\n".join([*matched, *reading.about])
    excerpt = "\n".join(dict.fromkeys([*list(matched)[:_MATCHED], *reading.last]))
    return Scene(
        facts,
        reading.hits,
        frozenset(hit.signature.id for hit in reading.hits),
        words,
        text,
        excerpt,
        "\n".join(reading.last),
        reading.went_on,
        reading.named,
    )
