"""Errors of reading a damaged zip file. Apart from ``files``, which each command imports: ``zipfile`` takes 5 ms."""

from __future__ import annotations

import lzma
import zipfile
import zlib

#: Beside ``OSError``. ``RuntimeError``: encrypted, or of another compression; ``ValueError``: names that are no text.
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
