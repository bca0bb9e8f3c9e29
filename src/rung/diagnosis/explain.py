"""``rung.explain``: from a log or an exception and its environment to a cause, how sure, why, and what to do."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rung.core.errors import UsageError
from rung.core.types import Device, StepClass
from rung.diagnosis.evidence import Evidence, Rule, Scene, scene_of
from rung.diagnosis.explanation import Alternative as Alternative
from rung.diagnosis.explanation import Explanation as Explanation
from rung.diagnosis.facts import environment_of, gather
from rung.diagnosis.fixes.fixing import causes, fixes_for
from rung.diagnosis.fixes.wording import Fix, Speaker
from rung.diagnosis.logs.reading import Hit, read
from rung.diagnosis.model import guessed, limited, log_words, probabilities, vague, votes, weights, words_of
from rung.diagnosis.rules import RULES

if TYPE_CHECKING:
    from rung.models.networks.values import Outline

#: Below this probability rung says that it does not know, and where it is likelier that nothing of it is the matter.
_LEAST = 0.12
#: From this share on ``rung run`` is said to repair a cause by itself.
_SURE = 0.92
_SHOWN = 5
_OUTSIDE = "not-a-compatibility-problem"
_CHUNK = 1 << 20


def explain(
    text_or_exception: str | BaseException | None = None, environment: Mapping[str, Any] | None = None
) -> Explanation:
    """The cause of an error, from its log (text) or the exception itself.

    Without one it is the exception that is handled now, or the last one that an interactive Python showed.

    ``environment`` has the keys gpu, compute_capability, driver, cuda, torch, os, cpu and library_versions, each
    optional, as people write them. Raises ``UsageError`` for an environment that is no object, and for what is neither
    a text nor an exception.
    """
    if text_or_exception is None:
        text_or_exception = sys.exception() or getattr(sys, "last_value", None)
    if text_or_exception is None:
        raise UsageError(
            "There is no error to explain.",
            ["no exception is handled now, and Python has shown none"],
            ['rung.explain("CUDA out of memory")', "rung.explain(error)   # in  except Exception as error:"],
            code="input-empty",
        )
    if isinstance(text_or_exception, BaseException):
        text_or_exception = "".join(traceback.format_exception(text_or_exception))
    if not isinstance(text_or_exception, str):
        raise UsageError(f"A log is a text or an exception, not {type(text_or_exception).__name__}.")
    data = text_or_exception.encode("utf-8", "replace")
    return explain_log((data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)), environment)


def explain_log(
    chunks: Iterable[bytes],
    environment: Mapping[str, Any] | None = None,
    *,
    device: Device | None = None,
    outline: Outline | None = None,
) -> Explanation:
    """As ``explain``, from a stream in UTF-8 (``log.utf8`` makes it so); goes through it once in bounded memory.

    With a ``device`` fixes are checked against its memory, for the model of the log or that of ``outline``, and the
    answer says what works there.
    """
    found = scene(chunks, environment)
    rules = rules_of(found)
    words = words_of(found, rules)
    shares = probabilities(weights(found.hits, rules), votes(words))
    answer = _judge(found, rules, words, shares if _speaks(found) else {})
    if device is None or answer.cause in (None, _OUTSIDE):
        return answer
    from rung.diagnosis.fixes.works import suit

    return suit(answer, found, device, outline)


def _speaks(scene: Scene) -> bool:
    """Return whether the log itself tells of a problem: a machine alone has none, whatever often goes wrong on such
    ones, nor has a program that went on after all that it met."""
    if scene.hits:
        return not scene.went_on
    causes = votes(log_words(scene))
    return bool(causes) and max(causes, key=causes.__getitem__) != ""


def rules_of(scene: Scene) -> list[Rule]:
    """The rules that apply."""
    return [rule for rule in RULES if rule.when(scene)]


def scene(chunks: Iterable[bytes], environment: Mapping[str, Any] | None = None) -> Scene:
    """Gather the facts of a log in UTF-8 and of its environment, before anything is concluded."""
    variables = environment_of(environment)
    reading = read(chunks)
    return scene_of(reading, gather(variables, [*reading.about, *(hit.line for hit in reading.hits)], reading.named))


def _judge(scene: Scene, rules: list[Rule], words: set[str], shares: Mapping[str, float]) -> Explanation:
    found, first = limited(shares, scene), next(iter(shares.items()), None)
    if first is not None and guessed(*first, scene):  # what the machine's words alone suggest is no more than a hint
        found = {label: share * _LEAST for label, share in found.items()}
    ranked = list(found.items())
    known = bool(ranked) and ranked[0][1] >= max(_LEAST, 1 - sum(found.values()))
    others = ranked[1:] if known else ranked
    alternatives = [Alternative(cause, round(share, 4)) for cause, share in others[:4]]
    named = {item.cause for item in alternatives} | ({ranked[0][0]} if known else set())
    for label in causes():  # at least two, so that a reader sees what else there could be
        if len(alternatives) < 2 and label not in named:
            alternatives.append(Alternative(label, 0.0))
    if not known:
        evidence = _evidence(scene, rules, None)
        again = Speaker(scene, "").again()
        return Explanation(None, 0.0, (), False, tuple(alternatives), evidence, again=again, vague=vague(scene))
    cause, share = ranked[0]
    speaker = Speaker(scene, cause)
    automatic = causes()[cause].automatic and share >= _SURE and _named(cause, scene) and speaker.program.repaired
    return Explanation(
        cause=cause,
        confidence=round(share, 4),
        fixes=fixes_for(found, scene, words, speaker),
        automatic=automatic,
        alternatives=tuple(alternatives),
        evidence=_evidence(scene, rules, cause),
        repairs=_repairs(scene, speaker, cause, automatic=automatic),
        tell=speaker.tell(alternatives[0].cause),
        program=speaker.program,
        again=speaker.again(),
        vague=vague(scene),
    )


#: Messages of refused products, whichever cause they have: ``rung exec`` repeats such a product in another dtype.
_PRODUCTS = {"cublas-not-supported"}
#: Causes that another reader of the same file shares.
_OF_FILE = (_OUTSIDE, "format-or-arch-unknown", "quantization-accuracy")


#: A Python program asked for a GPU where none is seen.
_WANT_GPU = (
    "torch-without-cuda",
    "no-nvidia-driver",
    "no-cuda-device",
    "deserialize-cuda",
    "ordinal-of-a-checkpoint",
    "quantiser-without-gpu",
)


def wants_gpu(hits: Iterable[Hit]) -> bool:
    """Say whether a program died because it asked for a GPU and saw none."""
    return any(hit.signature.id in _WANT_GPU and not hit.survived for hit in hits)


def _repairs(scene: Scene, speaker: Speaker, cause: str, *, automatic: bool) -> tuple[Fix, ...]:
    """Return the repairs that rung itself makes: one that it is sure of, its own reading of a GGUF file, a refused
    operation done another way."""
    found = []
    if (run := speaker.run()) and (automatic or (scene.mentions.file and cause not in _OF_FILE)):
        found.append(run)
    refused = [hit.signature for hit in scene.hits if hit.signature.step is StepClass.UNSUPPORTED and not hit.survived]
    repeated = bool(refused) if causes()[cause].automatic else any(row.id in _PRODUCTS for row in refused)
    if speaker.program.python and (automatic or (repeated and cause not in _OF_FILE)):
        found.append(speaker.exec())
    if speaker.program.python and scene.facts.without_gpu and wants_gpu(scene.hits):
        found.append(speaker.exec_on_cpu())
    return tuple(found)


def _named(cause: str, scene: Scene) -> bool:
    """Return whether an error says so itself: on words and guesses nothing is repaired."""
    return any(cause in hit.signature.causes and not hit.signature.general and not hit.survived for hit in scene.hits)


def _evidence(scene: Scene, rules: list[Rule], cause: str | None) -> tuple[Evidence, ...]:
    """Return the evidence for the cause: lines in their order, then facts, then contradictions."""
    found: dict[str, Hit] = {}
    for hit in scene.hits:
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
