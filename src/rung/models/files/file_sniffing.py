"""Hold what a file is when it is not what was hoped for, from its first bytes."""

from __future__ import annotations

from pathlib import Path

from rung.core.errors import BadFile, RungError, UnsafeFile
from rung.core.text import quoted

_MAGICS = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"\x7fELF", "a program (ELF)"),
    (b"MZ", "a Windows program"),
    (b"ggml", "a GGML file, the format before GGUF: convert the model again with a current llama.cpp"),
    (b"ggmf", "a GGMF file, a format before GGUF: convert the model again with a current llama.cpp"),
    (b"ggjt", "a GGJT file, a format before GGUF: convert the model again with a current llama.cpp"),
    (b"GGUF", "a GGUF file"),
    (b"version https://git-lfs", "a git LFS pointer, not the file itself: run git lfs pull, or hf download"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite", "an SQLite database"),
    (b"Entry not found", "an answer of the hub saying that the file is not there"),
)
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def describe(head: bytes) -> str:
    """Return the kind of a file with these first bytes (64 or more, where it has them), with an article; empty where it
    is unknown."""
    if not head:
        return "an empty file"
    if is_pickle(head):
        return "a pickle of PyTorch"
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive"
    for magic, what in _MAGICS:
        if head.startswith(magic):
            return what
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page: the download brought an error page or a login form"
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return "a safetensors file"
    if text[:1] in b"{[" and text:
        return "a JSON file"
    if not any(head):
        return "a file of zeros: the download reserved its place and stopped"
    return ""


def is_pickle(head: bytes) -> bool:
    """Return whether these first bytes begin a pickle, bare or in PyTorch's zip archive."""
    if head.startswith(b"PK\x03\x04"):
        return b"data.pkl" in head or b".data/" in head or b"archive/" in head
    return head.startswith(_PICKLES)


def head(path: Path) -> bytes:
    """The first 256 bytes of a file. Raises ``BadFile`` when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(256)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}", code="file-unreadable") from error


def foreign(path: Path, expected: str) -> RungError:
    """The error for a file that is not the ``expected`` (``a GGUF file``) it should be, saying what it is instead."""
    first = head(path)
    if is_pickle(first) or (path.suffix in PICKLE_SUFFIXES and not describe(first)):
        return unsafe(path)
    what = describe(first)
    facts = [f"its first bytes are {first[:8].hex(' ')}"] if first and not what else []
    ways = ["name a GGUF file, or the folder of a Hugging Face model", "if it was downloaded: fetch it again"]
    return BadFile(f"{path.name} is not {expected}" + (f", it is {what}" if what else ""), facts, ways)


def unsafe(path: Path) -> UnsafeFile:
    """The error for a pickle, with the command that makes safetensors of it."""
    whole = path.parent if (path.parent / "config.json").is_file() else path
    return UnsafeFile(
        f"{path.name} is a pickle: reading it could run code that is hidden in it",
        ["rung run reads safetensors and GGUF files only"],
        [
            f"rung convert {quoted(whole)} NEW_FOLDER   # reads it in a process of its own, builds only weights",
            "take a GGUF or safetensors version of the model:  rung run ORG/REPO",
        ],
    )
