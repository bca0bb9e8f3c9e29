"""How tokens spell bytes: GPT-2's byte letters and ``<0x0A>`` tokens, and characters out of streamed bytes."""

from __future__ import annotations

import codecs
import re

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _letters() -> dict[str, int]:
    # GPT-2's table: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards, in order.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [value for value in range(256) if value not in plain]
    return {chr(v): v for v in plain} | {chr(0x100 + n): v for n, v in enumerate(shifted)}


BYTE_LETTERS = _letters()


def byte_letters_to_bytes(text: str) -> bytes:
    """The bytes that byte letters stand for; a character outside the alphabet stands for itself."""
    out = bytearray()
    for letter in text:
        value = BYTE_LETTERS.get(letter)
        if value is None:
            out += letter.encode("utf-8", "replace")
        else:
            out.append(value)
    return bytes(out)


def is_byte_token(text: str) -> int | None:
    """The value of a ``<0x0A>`` token, else None."""
    found = _BYTE.fullmatch(text)
    return int(found[1], 16) if found else None


class Characters:
    """Whole characters out of bytes that come in pieces; invalid bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The characters that are complete now; an unfinished one is kept."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """U+FFFD if a character was left unfinished, else an empty string."""
        return self._decoder.decode(b"", final=True)
