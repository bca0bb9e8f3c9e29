"""Pages of mapped checkpoints are given back, and nothing else is."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rung.hub.mmap_pages import give_back, give_back_files

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="no /proc")


def resident(file: Path) -> int:
    """Bytes of a mapped file that are resident here."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(file))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


def test_pages_of_a_file_are_given_back_and_read_again(tmp_path):
    """All of them, and of this mapping: what somebody has changed of another one stays."""
    file, size = tmp_path / "model.safetensors", 8 << 20
    save_file({"a": torch.arange(size // 4, dtype=torch.int32), "b": torch.ones(size // 4)}, file)
    with safe_open(file, "pt") as opened:
        a, b = (opened.get_slice(name)[...] for name in ("a", "b"))
    with safe_open(file, "pt") as opened:
        changed = opened.get_slice("b")[...].zero_()
    total = int(a.sum()) + int(b.sum())
    before = resident(file)
    if before < 2 * size:
        pytest.skip("this safetensors does not map its files")
    give_back([a])
    assert resident(file) <= before - 2 * size + (64 << 10)
    assert int(a.sum()) + int(b.sum()) == total
    assert not changed.any()


def test_files_are_given_back_but_for_what_somebody_has_changed(tmp_path):
    files, size, tensors = [tmp_path / "a b.safetensors", tmp_path / "link.safetensors"], 8 << 20, []
    save_file({"weight": torch.arange(size // 4, dtype=torch.int32)}, files[0])
    files[1].symlink_to(files[0])
    for file in files:
        with safe_open(file, "pt") as opened:
            tensors.append(opened.get_slice("weight")[...])
    tensors[1][0] = 5
    total = [int(each.sum()) for each in tensors]
    before = resident(files[0])
    if before < 2 * size:
        pytest.skip("this safetensors does not map its files")
    give_back_files([files[1]])
    assert before - size - (64 << 10) <= resident(files[0]) <= before - size + (64 << 10)
    assert [int(each.sum()) for each in tensors] == total
    assert total[1] == total[0] + 5


@pytest.mark.parametrize("values", [torch.ones(1 << 20), torch.ones(512, 512).t(), torch.ones(3), torch.ones(0)])
def test_other_memory_is_left_alone(values):
    give_back([values])
    assert bool((values == 1).all())
