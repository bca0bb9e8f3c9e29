"""Downloads that go on where another run of the program left them.

``huggingface_hub`` itself goes on only within one call: what an interrupted process had is thrown away. So large files
are first completed beside their place in its cache (``models--ORG--REPO/blobs/<etag>``, the layout that its
documentation describes), where it then finds them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from rung.core.locks import lock_open_file

#: Files below this many bytes are not worth going on with.
LARGE = 8 * 2**20
_ETAG = re.compile(r"[A-Za-z0-9_-]{8,128}")


def complete_in_cache(repository: str, revision: str | None, name: str, bar: Any) -> None:
    """Puts one file of a model repository into the cache's blobs; what an earlier call had of it is kept.

    Does nothing for small files and while another process works on the same one. Raises what
    ``huggingface_hub`` raises.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get, repo_folder_name
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(repository, name, revision=revision)
    found = get_hf_file_metadata(url)
    if not found.etag or not found.size or found.size < LARGE or not _ETAG.fullmatch(found.etag):
        return
    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"
    whole, part = blobs / found.etag, blobs / f"{found.etag}.rung.part"
    if whole.exists():
        return
    blobs.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as file:
        if not lock_open_file(file):
            return
        here = file.tell()
        if here > found.size:
            file.truncate(0)
            here = 0
        http_get(
            url,
            file,
            resume_size=here,
            headers=build_hf_headers(),
            expected_size=found.size,
            tqdm_class=bar,
            displayed_filename=name,
        )
        file.flush()
        os.replace(part, whole)
