"""Hold what reading a damaged zip file raises."""

from __future__ import annotations

import lzma
import zipfile
import zlib

#: Beside ``OSError``. ``RuntimeError``: encrypted, or of another compression; ``ValueError``: names that are no text.
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
