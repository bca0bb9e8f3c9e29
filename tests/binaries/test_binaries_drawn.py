"""Containers drawn at random and written as their specifications say: what was put in is listed, and nothing else."""

import io
import random
import struct
from collections import Counter

import pytest
from tests import device_code as fake

from rung.binaries import heads, judge
from rung.binaries.images import CUBIN, PTX, Image
from rung.binaries.scan import scan

ARCHS = [30, 35, 50, 52, 61, 70, 75, 80, 86, 89, 90, 100, 103, 110, 120, 121]
AMD = ["gfx803", "gfx906:sramecc+:xnack-", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx11-generic", "gfx1201"]
PREFIXES = {fake.PTX: "compute_", fake.CUBIN: "sm_", fake.LTO: "lto_"}


def entry(chance, kind, arch, suffix):
    """A header of 64 to 120 bytes and a payload of any size that looks like everything else."""
    length = chance.choice((64, 80, 112, 120))
    payload = chance.choice((b"", chance.randbytes(chance.randrange(5000)), b"\x50\xed\x55\xba" * 40, b"\x7fELF" * 30))
    payload += bytes(-len(payload) % 8)
    packed, flag = chance.choice(((0, 0), (len(payload), 0x2000), (len(payload), 0x8000)))
    flags = 0x11 | flag | {"": 0, "a": fake.A, "f": fake.F}[suffix] | (1 << 24 if arch >= 100 else 0)
    head = struct.pack("<HHIQIIHHIIIQ", kind, 0x101, length, len(payload), packed, 64, 7, 8, arch, 0, 0, flags)
    return head + struct.pack("<QQ", 0, len(payload) * 3) + bytes(length - 64) + payload


def drawn(chance):
    """Some containers in a row, and what is in them."""
    data, inside = b"", Counter()
    for _ in range(chance.randrange(1, 6)):
        if chance.random() < 0.6:
            entries = b""
            for _ in range(chance.randrange(1, 9)):
                kind, arch = chance.choice(list(PREFIXES)), chance.choice(ARCHS)
                suffix = chance.choice(("", "a", "f") if arch >= 100 else ("", "a") if arch == 90 else ("",))
                entries += entry(chance, kind, arch, suffix)
                inside[f"{PREFIXES[kind]}{arch}{suffix}"] += 1
            data += fake.fatbin(entries)
        else:
            targets = chance.sample(AMD, chance.randrange(1, 5))
            bundle, version = fake.plain_bundle(*targets), chance.randrange(4)
            data += fake.compressed_bundle(version, bundle) if version else bundle
            inside.update(targets)
        data += bytes(8 * chance.randrange(5))
    return data, inside


@pytest.mark.parametrize("seed", range(60))
def test_what_was_put_in_is_listed(seed):
    chance = random.Random(seed)
    data, inside = drawn(chance)
    wrap = chance.choice((fake.elf, fake.pe, fake.mach_o, lambda data: b"!<arch>\n" + bytes(60) + data))
    whole = wrap(data)
    file = io.BytesIO(whole)
    found = scan("x", file, len(whole), file.read(heads.SIZE), seeks=seed % 2 == 0)
    assert (found.count(), found.remarks) == (inside, ())


@pytest.mark.parametrize("seed", range(60))
def test_of_a_part_of_a_file_nothing_is_listed_that_is_not_in_it(seed):
    chance = random.Random(seed)
    data, inside = drawn(chance)
    whole = chance.choice((fake.elf, fake.pe))(data)
    part = whole[: chance.randrange(88, len(whole))]
    file = io.BytesIO(part)
    found = scan("x", file, len(part), file.read(heads.SIZE), seeks=seed % 2 == 0)
    assert found.count() <= inside
    assert found.remarks, "that it was cut off is said"


@pytest.mark.parametrize("size", [52, 63, 64, 100, 200])
def test_a_library_that_ends_in_its_own_head_is_cut_off(size):
    part = fake.elf()[:size]
    assert scan("x", io.BytesIO(part), size, part, seeks=True).remarks[0].startswith("it is cut off")


def runs(kind, major, minor, suffix, device):
    """The rule as NVIDIA's guide to compatibility states it."""
    if suffix == "a":
        return (major, minor) == device
    if kind == CUBIN or suffix == "f":
        return major == device[0] and minor <= device[1]
    return (major, minor) <= device


def test_which_image_runs_where_is_as_the_guide_says():
    cards = [divmod(arch, 10) for arch in (*ARCHS, 53, 60, 62, 72, 87)]
    for major, minor in cards:
        for kind, prefix in ((CUBIN, "sm"), (PTX, "compute")):
            for suffix in ("", "a", "f") if major >= 10 else ("", "a") if major == 9 else ("",):
                image = Image(kind, f"{prefix}_{major}{minor}{suffix}")
                for card in cards:
                    assert judge.runs_on_cuda(image, card) == runs(kind, major, minor, suffix, card), (image, card)


def test_a_cubin_is_taken_before_ptx_that_is_newer():
    old, new = Image(CUBIN, "sm_70"), Image(PTX, "compute_75")
    assert judge.choose_cuda([new, old], (7, 5)) == old


def test_a_target_without_code_is_not_listed():
    data = fake.elf(fake.plain_bundle("gfx906", payload=b""))
    assert not scan("x", io.BytesIO(data), len(data), data[: heads.SIZE], seeks=True).count()
