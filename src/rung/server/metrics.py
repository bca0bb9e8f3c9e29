"""Count what a server has done, as Prometheus reads it: under names of rung, and under those of llama.cpp."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rung.server.protocol import Counts, Finished


@dataclass
class Totals:
    """Count what answers cost so far. Seconds are those of their sequences, which overlap."""

    answers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    longest: int = 0
    refused: int = 0

    def add(self, end: Finished) -> None:
        """Count an answer."""
        read = end.prompt_tokens - end.cached_tokens
        self.answers += 1
        self.prompt_tokens += read
        self.cached_tokens += end.cached_tokens
        self.prompt_seconds += end.prompt_seconds
        self.tokens += end.completion_tokens
        self.seconds += end.seconds
        self.longest = max(self.longest, end.prompt_tokens + end.completion_tokens)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def text(totals: Totals, counts: Counts) -> str:
    """Return the page of ``/metrics``."""
    counters = (
        ("prompt_tokens_total", "Tokens of prompts that were computed.", totals.prompt_tokens),
        ("prompt_seconds_total", "Seconds in which prompts were computed.", totals.prompt_seconds),
        ("tokens_predicted_total", "Tokens of answers.", totals.tokens),
        ("tokens_predicted_seconds_total", "Seconds in which answers were computed.", totals.seconds),
        ("n_decode_total", "Steps.", counts.steps),
        ("n_tokens_max", "Tokens of the longest sequence.", totals.longest),
        ("spec_decode_num_drafts_total", "Steps of answers with guesses.", counts.guessing),
        ("spec_decode_num_draft_tokens_total", "Tokens that were guessed.", counts.guessed),
        ("spec_decode_num_accepted_tokens_total", "Tokens that were guessed right.", counts.guessed_right),
        ("prompt_tokens_cached_total", "Tokens of prompts that an earlier request had computed.", totals.cached_tokens),
    )
    gauges = (
        ("n_busy_slots_per_decode", "Answers of a step, on the average.", _rate(counts.busy, counts.steps)),
        (
            "prompt_tokens_seconds",
            "Tokens of a prompt a second.",
            _rate(totals.prompt_tokens, totals.prompt_seconds),
        ),
        ("predicted_tokens_seconds", "Tokens of an answer in a second.", _rate(totals.tokens, totals.seconds)),
        ("requests_processing", "Answers that are computed.", counts.processing),
        ("requests_deferred", "Answers that wait.", counts.waiting),
    )
    ours = (
        ("answers_total", "Answers that have ended.", totals.answers),
        ("requests_refused_total", "Requests that found the queue full.", totals.refused),
    )
    lines = [
        *_lines("llamacpp:", "counter", counters),
        *_lines("llamacpp:", "gauge", gauges),
        *_lines("rung_", "counter", (*counters, *ours)),
        *_lines("rung_", "gauge", gauges),
    ]
    return "\n".join(lines) + "\n"


def _lines(prefix: str, kind: str, rows: Iterable[tuple[str, str, float]]) -> Iterable[str]:
    for name, words, value in rows:
        yield f"# HELP {prefix}{name} {words}"
        yield f"# TYPE {prefix}{name} {kind}"
        yield f"{prefix}{name} {value:.6g}" if isinstance(value, float) else f"{prefix}{name} {value}"
