"""A log that can be shown to others: without names, tokens and addresses."""

from __future__ import annotations

import re

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(?:hf|gh[pousr]|github_pat|sk|xox[abp]|glpat|AKIA|AIza|nvapi)[-_]?[A-Za-z0-9_-]{12,}"), "<token>"),
    (
        re.compile(
            r"(?i)((?<![a-z])[\w-]{0,40}(?:api[_-]?key|token|secret|password|passwd|authorization)['\"]?"
            r"(?:\s*[:=]\s*|\s+(?=\S{0,60}\d)(?=\S{20}))['\"]?)(?:bearer )?"
            r"(?!(?:\d+|true|false|none|null)\b)[^\s'\",]{4,}"
        ),
        r"\1<secret>",
    ),
    (re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"), "<token>"),
    (re.compile(r"(?i)\b(?:[0-9a-f]{1,4}:){5,7}[0-9a-f]{1,4}\b|\bfe80::[0-9a-f:]{1,40}"), "<ip>"),
    (re.compile(r"://[^/\s:@]{1,100}:[^/\s@]{1,200}@"), "://<login>@"),
    (
        re.compile(r"(?i)([A-Z]:[\\/]{1,2}Users[\\/]{1,2})(?:[^\\/'\":]{1,64}(?=[\\/])|[^\\/\s'\"]+)"),
        r"\1<user>",
    ),
    (re.compile(r"(/(?:home|Users)/)[^/\s'\"]+"), r"\1<user>"),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}\b"), "<address>"),
    (re.compile(r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b"), "<ip>"),
    (re.compile(r"\b\w[\w.-]{0,62}@[\w-]{1,63}(?=:[~/])"), "<user>@<host>"),
)


def redact(line: str) -> str:
    """The line with user names in paths, tokens, passwords, mail and network addresses replaced by words."""
    for pattern, words in _PATTERNS:
        line = pattern.sub(words, line)
    return line
