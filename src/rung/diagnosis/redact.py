"""A log that can be shown to others: without names, tokens and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"\b(?:hf|gh[pousr]|github_pat|sk|xox[abp]|glpat|AKIA|AIza|nvapi)[-_]?[A-Za-z0-9_-]{12,}"
            r"|\b(?:npm|pypi|r8|rpa|dop_v1|lin_api)[-_][A-Za-z0-9_-]{20,}"
        ),
        "<token>",
    ),
    (re.compile(r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?)(?:\w{3,12} )?[^\s'\",]{4,}"), r"\1<secret>"),
    (
        re.compile(
            r"(?i)((?<![a-z])[\w-]{0,40}(?:api[_ -]?key|token|secret|password|passwd)['\"]?\s*[:=]\s*)(['\"])"
            r"(?=[^'\"\n]{0,200}\s)[^'\"\n]{4,200}\2"
        ),
        r"\1\2<secret>\2",
    ),
    (
        re.compile(
            r"(?i)(\b(?:x-amz-)?(?:signature|sig|session(?:id)?|sessionid|csrftoken)=)(?=\S{0,60}\d)[\w%+/=-]{8,}"
        ),
        r"\1<secret>",
    ),
    (
        re.compile(
            r"(?i)((?<![a-z])[\w-]{0,40}(?:api[_ -]?key|token|secret|password|passwd|authorization)['\"]?"
            r"(?:\s*[:=]\s*|\s+(?=\S{0,60}\d)(?=\S{20}))['\"]?)(?:bearer )?"
            r"(?!(?:\d+|true|false|none|null)\b)[^\s'\",]{4,}"
        ),
        r"\1<secret>",
    ),
    (
        re.compile(
            r"(?i)((?:access|account|azure|private|secret|shared|signing|subscription)[_-]?(?:access[_-]?)?key(?:[_-]?id)?"
            r"['\"]?\s*[:=]\s*['\"]?)[^\s'\",;]{8,}"
        ),
        r"\1<secret>",
    ),
    (re.compile(r"(?i)((?<!\w)--?[a-z-]{0,30}(?:password|passwd|token|secret|api-?key)\s+)(?!-)\S+"), r"\1<secret>"),
    (re.compile(r"\b(?:ssh-[a-z0-9]{2,10}|ecdsa-[a-z0-9-]{2,30}) AAAA\S+(?: [^\s@]{1,64}@\S+)?"), "<key>"),
    (re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"), "<token>"),
    (re.compile(r"(?i)\b(?:[0-9a-f]{1,4}:){5,7}[0-9a-f]{1,4}\b|\bfe80::[0-9a-f:]{1,40}"), "<ip>"),
    (re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{1,4}:){2,6}:[0-9a-f:]{1,24}(?![\w:])"), "<ip>"),
    (re.compile(r"://[^/\s:@]{1,100}:[^/\s@]{1,200}@"), "://<login>@"),
    (
        re.compile(r"(?i)([A-Z]:[\\/]{1,2}Users[\\/]{1,2})(?:[^\\/'\":]{1,64}(?=[\\/])|[^\\/\s'\"]+)"),
        r"\1<user>",
    ),
    (re.compile(r"(/Users/)[^/:'\"]{1,64}(?=/)"), r"\1<user>"),
    (re.compile(r"(/(?:home|Users|scratch|media)/)(?!<user>)[^/\s'\":]+"), r"\1<user>"),
    (re.compile(r"(?i)(%2F(?:home|Users)%2F)[^%\s'\"]+"), r"\1<user>"),
    (re.compile(r"(?<![\w\\:])(\\\\)[\w.-]{1,64}\\[^\\/\s'\"]+"), r"\1<host>\\<share>"),
    (re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<gpu>"),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,3}\.[A-Za-z]{2,24}\b"), "<address>"),
    (re.compile(r"\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b"), "<ip>"),
    (re.compile(r"\b\w[\w.-]{0,62}@[\w-]{1,63}(?=[: ][~/]| [^\]\s]{1,100}\][$#])"), "<user>@<host>"),
    (re.compile(r"(?i)(\blogged in as:?\s+|\b(?:user|username|logname|hostname)=)[^\s,;]+"), r"\1<user>"),
    (re.compile(r"\bya29\.[\w-]{12,}"), "<token>"),
    (re.compile(r"(?<![\w/~])~[a-z_][\w.-]{0,31}(?=/)"), "~<user>"),
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----")
_KEY_ENDS = "-----END "
#: A private key has no more lines than that: one that never ends does not swallow a log.
_KEY_LINES = 200


def redacted(lines: Iterable[str]) -> Iterator[str]:
    """The lines as ``redact`` leaves them; of a private key, which is of many lines, one word."""
    inside = 0
    for line in lines:
        if inside and inside <= _KEY_LINES:
            inside = 0 if _KEY_ENDS in line else inside + 1
        elif begun := _KEY_BEGINS.search(line):
            inside = 0 if _KEY_ENDS in line else 1
            yield redact(line[: begun.start()]) + "<key>"
        else:
            yield redact(line)


def redact(line: str) -> str:
    """The line with user names in paths, tokens, passwords, mail and network addresses replaced by words."""
    for pattern, words in _PATTERNS:
        line = pattern.sub(words, line)
    return line
