"""A log that can be shown to others: without names, tokens and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_SECRET = r"api[_ -]?key|token|secret|password|passwd|passphrase|credentials?"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"\b(?:(?:hf|api_org|gh[pousr]|gsk)_[A-Za-z0-9]{12,}|A[KS]IA[A-Z0-9]{12,}|AIza[\w-]{12,}|1//0[\w-]{12,}"
            r"|(?:github_pat|dckr_pat|sk_live|sk_test|rk_live)_[\w-]{12,}|(?:xox[a-z]|xapp|glpat|nvapi|xai|tvly)-[\w-]{12,}"
            r"|(?:sk|org)-(?=[^\s'\"]{0,200}[\d*A-Z])[\w*-]{12,}|SG\.[\w-]{12,}\.[\w-]{12,}"
            r"|(?:npm|pypi|r8|rpa|dop_v1|lin_api)[-_][A-Za-z0-9_-]{20,})"
        ),
        "<token>",
    ),
    (re.compile(r"(://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/)\S+"), r"\1<secret>"),
    (re.compile(r"(?i)\b(bearer\s+)(?=\S{0,200}\d)[\w.~+/=-]{12,}"), r"\1<secret>"),
    (re.compile(r"(?i)(\s-u\s+)[^\s:]{1,64}:\S+"), r"\1<login>"),
    (re.compile(r"(?i)\b(pwd=)(?![/~.<]|[a-z]:)\S{4,}"), r"\1<secret>"),
    (re.compile(r"(?i)(\bserial(?: number)?\s{0,20}[:=]\s{0,20})(?=\S{0,60}\d)[\w-]{6,}"), r"\1<serial>"),
    (re.compile(r"(?i)\b(authorization['\"]?\s*[:=]\s*['\"]?)(?:\w{3,12} )?[^\s'\",]{4,}"), r"\1<secret>"),
    (
        re.compile(
            rf"(?i)((?<![a-z])[\w-]{{0,40}}(?:{_SECRET})['\"]?\s*[:=]\s*)(['\"])"
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
            rf"(?i)((?<![a-z])[\w-]{{0,40}}(?:{_SECRET}|authorization)['\"]?"
            r"(?:\s*[:=]\s*|\s+(?=\S{0,60}\d)(?=\S{20}))['\"]?)(?:bearer )?"
            r"(?!(?:\d+|true|false|none|null)\b|</?\w{1,16}>|\[[A-Z]{2,8}\])[^\s'\",]{4,}"
        ),
        r"\1<secret>",
    ),
    (
        re.compile(
            r"(?i)((?:access|account|azure|private|secret|shared|signing|subscription)[_-]?(?:access[_-]?)?key(?:[_-]?id)?"
            r"(?:['\"]?\s*[:=]\s*['\"]?|\s+(?=\S{20})(?=\S{0,60}\d)))[^\s'\",;]{8,}"
        ),
        r"\1<secret>",
    ),
    (re.compile(r"(?i)((?<!\w)--?[a-z-]{0,30}(?:password|passwd|token|secret|api-?key)\s+)(?!-)\S+"), r"\1<secret>"),
    (re.compile(r"\b(?:ssh-[a-z0-9]{2,10}|ecdsa-[a-z0-9-]{2,30}) AAAA\S+(?: [^\s@]{1,64}@\S+)?"), "<key>"),
    (re.compile(r"\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"), "<token>"),
    (re.compile(r"(?i)\b(?:[0-9a-f]{1,4}:){5,7}[0-9a-f]{1,4}\b|\bf[de][0-9a-f]{2}::[0-9a-f:]{1,40}"), "<ip>"),
    (
        re.compile(r"(?i)\b(?:[0-9a-f]{2}-){5}[0-9a-f]{2}\b|\b(?=[\d.]{0,13}[a-f])(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}\b"),
        "<mac>",
    ),
    (re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{1,4}:){2,6}:[0-9a-f:]{1,24}(?![\w:])"), "<ip>"),
    (re.compile(r"://[^/\s:@]{0,100}(?::[^/\s@]{1,200})?@"), "://<login>@"),
    (
        re.compile(
            r"(?i)([A-Z]:[\\/]{1,2}(?:Users|Documents and Settings)[\\/]{1,2})"
            r"(?:[^\\/'\":]{1,64}(?=[\\/])|[^\\/\s'\"]+)"
        ),
        r"\1<user>",
    ),
    (re.compile(r"(/Users/)[^/:'\"]{1,64}(?=/)"), r"\1<user>"),
    (re.compile(r"(?i)(/(?:home\d{0,2}|homes|users)/)(?!<user>)[^/\s'\":]+"), r"\1<user>"),
    (re.compile(r"(/(?:scratch|media)/)(?!<user>|users/|home/)[^/\s'\":]+"), r"\1<user>"),
    (re.compile(r"(?i)((?:%2F|%5C)(?:home|Users)(?:%2F|%5C))[^%\s'\"]+"), r"\1<user>"),
    (re.compile(r"(?i)(\\home\\)[^\\/\s'\"]+"), r"\1<user>"),
    (re.compile(r"(?<![\w\\:])(\\\\)[\w.$-]{1,64}\\[^\\/\s'\"]+"), r"\1<host>\\<share>"),
    (re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<gpu>"),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,3}\.[A-Za-z]{2,24}\b"), "<address>"),
    (re.compile(r"\b\w[\w.-]{0,62}@[\w-]{1,63}(?=[: ][~/]| MINGW| [^\]\s]{1,100}\][$#])"), "<user>@<host>"),
    (re.compile(r"^[\w.-]{1,64}(:\S{1,200} )[a-z_][\w.-]{0,31}(?=[$%] )"), r"<host>\1<user>"),
    (re.compile(r"\(\w[\w.-]{0,31}㉿[\w.-]{1,63}\)"), "(<user>@<host>)"),
    (re.compile(r"\b([ug]id=\d+)\([^()\s]{1,64}\)"), r"\1(<user>)"),
    (
        re.compile(
            r"(?i)(\blogged in as:?\s+|\b\w{0,40}(?:user|username|logname|hostname)=(?!\d+\b|true\b|false\b|none\b)"
            r"|\b(?:user|user ?name|login|logname|host ?name|computer ?name)['\"]?\s{0,20}:\s{0,20}['\"]?"
            r"(?!(?:none|null)\b)(?=[\w.@$-]{1,64}['\"]?\s*(?:[,;}]|$)))[^\s,;'\"]+"
        ),
        r"\1<user>",
    ),
    (re.compile(r"\bya29\.[\w-]{12,}"), "<token>"),
    (re.compile(r"(?<![\w/~])~[a-z_][\w.-]{0,31}(?=/)"), "~<user>"),
)
#: Four numbers behind the name of a program or in that of a file are a version, as cuDNN's and cuBLAS's.
_NETWORK = re.compile(
    r"(?i)((?:\b(?:(?:lib)?cu|nv|tensorrt|trt|nccl|vulkan|driver|version|release|rocm|hip|mesa|onnx|openvino|oneapi|mkl|adreno)"
    r"(?:[\w-]|\.dll){0,60}['\"\])]?(?:(?: version)?\s{0,40}[:=(]?\s{0,40}|==)['\"]?v?|[<>=~!]=\s?['\"]?|[-_.]|\bv)"
    r"(?!192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|169\.254\.)\d{1,3}(?:\.\d{1,3}){3}\b)"
    r"|\b(?!127\.0\.0\.1\b|0\.0\.0\.0\b)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b"
)
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
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
    return _NETWORK.sub(lambda found: found[1] or "<ip>", line)
