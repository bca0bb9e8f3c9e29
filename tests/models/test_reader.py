"""The reader: views without a copy, pages given back, files that change under it."""

from pathlib import Path

import handmade
import numpy as np
import pytest

import tiny
from rung import formats
from rung.core.errors import BadFile
from rung.models import open_card
from rung.models.reader import Reader


@pytest.fixture
def card(tmp_path):
    return open_card(handmade.llama(tmp_path / "x.gguf"))


def test_a_view_and_no_copy(card):
    with Reader(card) as reader:
        tensor = card.tensor("layers.0.q")
        data = reader.read(tensor).parts["data"]
        assert not data.flags.owndata
        assert not data.flags.writeable
        assert data.shape == (4, 16)
        np.testing.assert_allclose(formats.decode(reader.read(tensor)).ravel(), 1 + np.arange(16) / 7, rtol=1e-6)


def test_norms_are_one_row(card):
    with Reader(card) as reader:
        assert reader.read(card.tensor("norm")).shape == (1, 4)


def test_what_was_read_stays_until_its_last_view_goes(card):
    with Reader(card) as reader:
        data = reader.read(card.tensor("embed")).parts["data"]
        before = data.copy()
    np.testing.assert_array_equal(data, before)


def resident(path):
    """Bytes of the file that this process has in memory through mappings."""
    total, ours = 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if "-" in line.split(" ", 1)[0]:
                ours = line.rstrip().endswith(str(path))
            elif ours and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells which pages are here")
def test_done_gives_pages_back(tmp_path):
    tiny.tiny_checkpoint(tmp_path / "m", "llama", hidden_size=256, intermediate_size=2048, num_hidden_layers=1)
    card = open_card(tmp_path / "m")
    (file,) = card.files
    with Reader(card) as reader:
        for role in ("layers.0.gate", "layers.0.up", "layers.0.down"):
            tensor = card.tensor(role)
            assert tensor.bytes == 2**21
            first = formats.decode(reader.read(tensor)).sum()
            assert resident(file) > tensor.bytes * 0.9
            reader.done(tensor)
            assert resident(file) < 2**19
            assert formats.decode(reader.read(tensor)).sum() == first  # they come back when somebody looks
            reader.done(tensor)


def test_done_before_read_and_small_tensors(card):
    with Reader(card) as reader:
        reader.done(card.tensor("embed"))
        reader.read(card.tensor("embed"))
        reader.done(card.tensor("embed"))


def test_a_file_that_became_shorter_or_vanished(card, tmp_path):
    path = tmp_path / "x.gguf"
    whole = path.read_bytes()
    path.write_bytes(whole[:-64])
    with Reader(card) as reader, pytest.raises(BadFile, match="ends at byte"):
        reader.read(card.tensor("layers.0.down"))
    path.write_bytes(b"")
    with Reader(card) as reader, pytest.raises(BadFile, match="empty file"):
        reader.read(card.tensor("embed"))
    path.unlink()
    with Reader(card) as reader, pytest.raises(BadFile, match="cannot be read"):
        reader.read(card.tensor("embed"))
