"""Libraries in wheels and other archives: read without unpacking, several at a time, whatever the archive claims."""

import _thread
import io
import threading
import zipfile

from tests import device_code as fake
from tests.interrupting import ended

from rung.binaries import places
from rung.binaries.images import Library
from rung.binaries.judge import judge
from rung.binaries.scan import scan
from rung.core.shield import Workers
from rung.hardware import catalog

PLAIN = fake.fatbin(fake.entry(fake.CUBIN, 75), fake.entry(fake.CUBIN, 90, fake.A), fake.entry(fake.PTX, 120))


def listed(library: Library) -> list[str]:
    return sorted(library.count())


def test_a_wheel_is_read_without_unpacking_it(tmp_path):
    wheel = tmp_path / "x.whl"
    members = {"x/lib.so": fake.elf(PLAIN), "x/__init__.py": b"import os", "x/kernel.fatbin": PLAIN}
    wheel.write_bytes(fake.archive(members))
    found = {library.name: listed(library) for library in places.libraries(wheel, [])}
    assert found == {key: ["compute_120", "sm_75", "sm_90a"] for key in ("x/lib.so", "x/kernel.fatbin")}


def test_large_members_are_read_beside_each_other_and_come_in_their_order(tmp_path, monkeypatch):
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(
        fake.archive(
            {f"{name}.so": fake.elf(PLAIN + bytes(size)) for name, size in zip("abc", (9, 0, 90), strict=True)}
        )
    )
    both = threading.Barrier(2, timeout=60)

    def met(name, *rest, **options):
        if name != "b.so":
            both.wait()
        return scan(name, *rest, **options)

    monkeypatch.setattr(places, "_LARGE", len(fake.elf(PLAIN + bytes(9))))
    monkeypatch.setattr(places.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(places.scan, "scan", met)
    assert [found.name for found in places.libraries(wheel, [])] == ["a.so", "b.so", "c.so"]


def test_what_nobody_waits_for_is_not_read_further(tmp_path, monkeypatch):
    pool = Workers(1)
    file = places._Stoppable(io.BytesIO(b"library"), pool)
    assert file.read(3) == b"lib"
    pool.close()
    assert file.read(3) == b""
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(fake.archive({f"{name}.so": fake.elf(PLAIN) for name in "ab"}))
    monkeypatch.setattr(places, "_LARGE", 1)
    before = _thread._count()
    found = places.libraries(wheel, [])
    assert next(found).name == "a.so"
    assert _thread._count() > before
    found.close()
    assert ended(before)


def test_a_program_with_an_archive_behind_it(tmp_path):
    """A llamafile: an executable, then a zip with weights and libraries for several GPUs."""
    program = fake.elf(fake.fatbin(fake.entry(fake.CUBIN, 60)))
    members = {"ggml-cuda.so": fake.elf(PLAIN), "model.gguf": b"GGUF" + bytes(100)}
    path = tmp_path / "m.llamafile"
    path.write_bytes(fake.archive(members, zipfile.ZIP_STORED, program))
    found = {library.name: listed(library) for library in places.libraries(path, [])}
    assert found == {"m.llamafile": ["sm_60"], "ggml-cuda.so": ["compute_120", "sm_75", "sm_90a"]}


def test_names_that_lead_out_of_the_archive_are_told_and_never_written(tmp_path):
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(
        fake.archive({"../../evil.so": fake.elf(PLAIN), "/etc/evil.so": fake.elf(), "C:\\evil.so": fake.elf()})
    )
    remarks: list[str] = []
    found = list(places.libraries(wheel, remarks))
    assert len(found) == 3
    assert "3 of its names lead out" in remarks[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.whl"]


def test_a_zip_bomb_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "_ALLOWANCE", 1 << 20)
    wheel = tmp_path / "x.whl"
    bomb = fake.elf(bytes(32 << 20))
    wheel.write_bytes(fake.archive({"a.so": fake.elf(PLAIN), "bomb.so": bomb, "b.so": fake.elf(PLAIN)}))
    remarks: list[str] = []
    assert [library.name for library in places.libraries(wheel, remarks)] == ["a.so"]
    assert "made to fill a disk" in remarks[0]
    assert "bomb.so" in remarks[0]


def test_a_member_that_is_damaged_does_not_hide_the_others(tmp_path):
    wheel = tmp_path / "x.whl"
    data = bytearray(fake.archive({"a.so": fake.elf(PLAIN), "b.so": fake.elf(PLAIN)}))
    data[60:70] = bytes(10)
    wheel.write_bytes(data)
    first, second = places.libraries(wheel, [])
    assert "cannot be read" in first.remarks[0]
    assert listed(second) == ["compute_120", "sm_75", "sm_90a"]


def test_archives_in_archives_and_folders_are_named(tmp_path):
    outer = tmp_path / "all.zip"
    outer.write_bytes(fake.archive({"x.whl": fake.archive({"a.so": fake.elf(PLAIN)}), "b.so": fake.elf(PLAIN)}))
    for folder, said in (
        (outer, "1 archive in it is not looked into; unpack or name it: x.whl"),
        (tmp_path, "1 archive in it is not looked into; unpack or name it: all.zip"),
    ):
        remarks: list[str] = []
        list(places.libraries(folder, remarks))
        assert remarks == [said]


def test_of_a_member_that_is_not_read_nothing_is_claimed(tmp_path):
    wheel = tmp_path / "x.whl"
    data = bytearray(fake.archive({"a.so": fake.elf(PLAIN)}))
    directory = data.rfind(b"PK\x01\x02")
    data[6] |= 1
    data[directory + 8] |= 1
    wheel.write_bytes(data)
    (library,) = places.libraries(wheel, [])
    assert (library.format, library.remarks) == ("not read", ("it is encrypted",))
    assert judge(library, catalog.device("p2200")).runs == "unknown"
