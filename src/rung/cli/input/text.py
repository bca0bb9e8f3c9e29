"""Bytes that a person gives as a text: decoded, or refused with what they really are."""

from __future__ import annotations

import codecs
import re

#: How files begin that are no text, and what they are; ``....`` is any four bytes.
_KINDS = (
    (rb"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (rb"\xff\xd8\xff", "a JPEG picture"),
    (rb"GIF8[79]a", "a GIF picture"),
    (rb"RIFF....WEBP", "a WebP picture"),
    (rb"RIFF....WAVE", "a WAV recording"),
    (rb"(?:II\*\0|MM\0\*)", "a TIFF picture"),
    (rb"BM.{4}\0\0\0\0", "a BMP picture"),
    (rb"....ftyp", "an MP4 video or a HEIC picture"),
    (rb"(?:ID3|\xff[\xf2\xf3\xfb])", "an MP3 recording"),
    (rb"OggS", "an Ogg recording"),
    (rb"fLaC", "a FLAC recording"),
    (rb"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (rb"%PDF-", "a PDF file"),
    (rb"PK\x03\x04", "a zip archive, which DOCX, XLSX and EPUB files are too"),
    (rb"\x1f\x8b", "a gzip archive"),
    (rb"BZh[1-9]", "a bzip2 archive"),
    (rb"\xfd7zXZ\0", "an xz archive"),
    (rb"\x28\xb5\x2f\xfd", "a zstd archive"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (rb"\x7fELF", "a program"),
    (rb"GGUF", "a model in GGUF"),
    (rb"SQLite format 3\0", "an SQLite database"),
    (rb"\xd0\xcf\x11\xe0", "an old Word or Excel file"),
)
#: How the text gets out of such a file, by a word of its kind: what to type before the pipe.
_TEXT_OF = (
    ("PDF", "pdftotext FILE.pdf -"),
    ("gzip", "zcat FILE.gz"),
    ("bzip2", "bzcat FILE.bz2"),
    ("xz", "xzcat FILE.xz"),
    ("zstd", "zstdcat FILE.zst"),
    ("DOCX", "pandoc -t plain FILE.docx"),
    ("Word", "pandoc -t plain FILE.docx"),
    ("not UTF-8", "iconv -f latin1 -t utf-8 FILE.txt"),
)
#: Bytes that are looked at.
_HEAD = 1 << 16
#: A text may hold so large a share of bytes that are no UTF-8: a word in another alphabet, a log that was cut.
_MOST_WRONG = 0.3
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def kind_of(data: bytes) -> str | None:
    """Return the kind of data that is no text, in words; None for text.

    >>> kind_of(b"%PDF-1.7"), kind_of(b"Hello"), kind_of(b"a\\0b")
    ('a PDF file', None, 'binary data')
    """
    for start, words in _KINDS:
        if re.match(start, data, re.DOTALL):
            return words
    if data.startswith(_UTF16):
        return None
    head = data[:_HEAD]
    if b"\0" in head:
        return "binary data"
    wrong = head.decode("utf-8", "replace").count("\ufffd")
    return "text that is not UTF-8, or binary data" if wrong > _MOST_WRONG * max(len(head), 1) else None


def decode(data: bytes) -> str:
    """Return the text of data that ``kind_of`` finds no other kind for: UTF-8, or UTF-16 with a mark at its start."""
    if data.startswith(_UTF16):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def text_of(kind: str) -> str | None:
    """Return the command that prints the text in a file of such a kind; None where it holds none."""
    return next((command for word, command in _TEXT_OF if word in kind), None)
