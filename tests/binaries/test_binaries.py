"""Reading device code out of files: every container, the toolkit's own files, and files that lie."""

import io
import json
import random
import struct
from collections import Counter
from pathlib import Path

import pytest
from tests import device_code as fake

from rung.binaries import containers, heads, places, stream
from rung.binaries.images import CODE_OBJECT, CUBIN, LTO, PTX, SPIRV, Library
from rung.binaries.scan import _BUDGET, Watch, scan
from rung.binaries.stream import CHUNK
from rung.core.errors import BadFile, UsageError

FIXTURES = Path(__file__).parent / "files"
#: Large enough to hold kernels.
PLAIN = fake.fatbin(fake.entry(fake.CUBIN, 75), fake.entry(fake.CUBIN, 90, fake.A), fake.entry(fake.PTX, 120))


def read(data: bytes, name: str = "lib.so", seeks: bool = True) -> Library:
    file = io.BytesIO(data)
    return scan(name, file, len(data), file.read(heads.SIZE), seeks=seeks)


def listed(library: Library) -> list[str]:
    return sorted(library.count())


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.json")), ids=lambda path: path.stem)
def test_files_of_the_toolkit_are_listed_as_cuobjdump_lists_them(path):
    expected = json.loads(path.read_text(encoding="utf-8"))
    found = read(path.with_suffix("").read_bytes(), path.stem)
    # cuobjdump 13.5 lists a cubin for sm_100f as one for sm_100; that the f was read is held by what was put in
    assert Counter(name.rstrip("f") for name in found.count(CUBIN).elements()) == expected["cubins"]
    assert found.count(PTX, where=("fatbin", "empty")) == expected["ptx"]
    assert sorted(found.count().elements()) == expected["put in"]
    assert not found.remarks


@pytest.mark.parametrize(
    ("wrapped", "kind"),
    [
        (PLAIN, "fatbin"),
        (fake.elf(PLAIN), "ELF library"),
        (fake.pe(PLAIN), "PE library"),
        (fake.mach_o(PLAIN), "Mach-O file"),
        (b"!<arch>\n" + bytes(60) + PLAIN, "archive"),
    ],
)
@pytest.mark.parametrize("seeks", [True, False])
def test_a_fatbin_is_found_wherever_it_lies(wrapped, kind, seeks):
    found = read(wrapped, seeks=seeks)
    assert (found.format, listed(found), found.remarks) == (kind, ["compute_120", "sm_75", "sm_90a"], ())


def test_suffixes_kinds_and_versions_of_images():
    found = read(
        fake.fatbin(
            fake.entry(fake.CUBIN, 100, fake.F),
            fake.entry(fake.PTX, 90, fake.A, isa=(8, 0)),
            fake.entry(fake.LTO, 86),
            fake.entry(64, 86),  # a kind that nobody knows is passed over
        )
    )
    (item,) = found.objects
    assert [(image.kind, image.target, image.isa) for image in item.images] == [
        (LTO, "lto_86", ""),
        (PTX, "compute_90a", "8.0"),
        (CUBIN, "sm_100f", ""),
    ]


def test_objects_with_the_same_images_are_counted():
    found = read(fake.elf(PLAIN * 5 + fake.fatbin(fake.entry(fake.CUBIN, 80))))
    assert [(len(item.images), item.count) for item in found.objects] == [(3, 5), (1, 1)]
    assert found.count(CUBIN) == {"sm_75": 5, "sm_90a": 5, "sm_80": 1}


@pytest.mark.parametrize("seeks", [True, False])
def test_fatbins_that_the_runtime_registers_and_those_that_a_program_loads_by_itself(seeks):
    one = fake.fatbin(fake.entry(fake.CUBIN, 80, payload=bytes(3 * CHUNK)))
    found = read(fake.elf_with_sections(one * 2 + PLAIN, fake.fatbin(fake.entry(fake.CUBIN, 80)) + PLAIN), seeks=seeks)
    assert [(item.where, item.count, len(item.images)) for item in found.objects] == [
        ("data", 1, 3),
        ("data", 1, 1),
        ("fatbin", 1, 3),
        ("fatbin", 2, 1),
    ]
    assert not found.remarks


def test_objects_without_a_kernel():
    """nvcc makes an object of every source file; sizes as ptxas 12.9 to 13.4 write them."""
    for target, empty, full in ((50, 872, 1864), (75, 1904, 2344), (90, 1112, 2856), (100, 2248, 4840)):
        for size, where in ((empty, "empty"), (full, "fatbin")):
            one = fake.fatbin(fake.entry(fake.CUBIN, target, payload=bytes(size)), fake.entry(fake.PTX, 120))
            assert [item.where for item in read(fake.elf(one)).objects] == [where], (target, size)
    assert [item.where for item in read(fake.fatbin(fake.entry(fake.PTX, 80))).objects] == ["fatbin"]


@pytest.mark.parametrize("at", [CHUNK - 20, CHUNK - 3, CHUNK - 1, CHUNK, 3 * CHUNK - 2])
@pytest.mark.parametrize("seeks", [True, False])
def test_marks_across_the_borders_of_pieces_are_found(at, seeks):
    inside = fake.fatbin(fake.entry(fake.CUBIN, 80, payload=bytes(CHUNK + 8)))
    found = read(bytes(at) + inside + PLAIN, seeks=seeks)
    assert found.count(CUBIN) == {"sm_80": 1, "sm_75": 1, "sm_90a": 1}


def test_images_inside_a_payload_are_not_listed_again():
    cubin = fake.device_elf(190, 8, 75 << 8)
    found = read(fake.fatbin(fake.entry(fake.CUBIN, 75, payload=cubin + bytes(4096))))
    assert [item.where for item in found.objects] == ["fatbin"]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_offload_bundles(version):
    bundle = fake.plain_bundle("gfx906:sramecc+:xnack-", "gfx1030", "gfx11-generic")
    data = fake.compressed_bundle(version, bundle) if version else bundle
    found = read(fake.elf(bytes(100) + data * 2))
    assert found.count(CODE_OBJECT) == {"gfx906:sramecc+:xnack-": 2, "gfx1030": 2, "gfx11-generic": 2}
    assert not found.remarks


def test_a_bundle_packed_with_zstd_by_the_offload_bundler():
    # the beginning of a frame made with zstd -19 from made.plain_bundle("gfx90a", "gfx942") (binaries/make.py)
    found = read((FIXTURES / "bundle.zst.ccob").read_bytes())
    if found.remarks:
        assert "libzstd" in found.remarks[0]  # nothing here decompresses zstd, and it is said
    else:
        assert listed(found) == ["gfx90a", "gfx942"]


def test_spirv_for_amd_is_no_code_object():
    found = read(fake.plain_bundle("amdgcnspirv"))
    assert [image.kind for item in found.objects for image in item.images] == [SPIRV]


@pytest.mark.parametrize(
    ("machine", "abi", "flags", "text", "target"),
    [
        (190, 7, 0x5A055A, b"", "sm_90"),
        (190, 7, 0x5A0D5A, b"", "sm_90a"),
        (190, 7, 0x3C0D3C, b"", "sm_60"),
        (190, 8, 0x6005A04, b"", "sm_90"),
        (190, 8, 0x6005A04, b"-arch sm_90a ", "sm_90a"),
        (190, 8, 0x6006402, b"-arch sm_100f -m 64", "sm_100f"),
        (190, 8, 0x6006402, b"-arch sm_90a ", "sm_100"),  # a word in its data that is not about it
        (224, 2, 0x3F, b"", "gfx90a"),
        (224, 2, 0xA3F, b"", "gfx90a:sramecc-:xnack-"),
        (224, 3, 0xF2F, b"", "gfx906:sramecc+:xnack+"),
        (224, 4, 0x01000054, b"", "gfx11-generic"),
        (224, 2, 0x36, b"", "gfx1030"),
    ],
)
def test_images_that_stand_alone(machine, abi, flags, text, target):
    data = fake.device_elf(machine, abi, flags, text)
    for found in (read(data, "kernel.cubin"), read(fake.elf(bytes(8) + data))):
        assert [(item.where, *(image.target for image in item.images)) for item in found.objects] == [("alone", target)]


def test_ptx_as_text_and_kernels_known_by_their_name_only():
    text = b"//\n// Generated\n//\n\n.version 8.4\n.target sm_90a\n.address_size 64\n"
    assert listed(read(text, "kernel.ptx")) == ["compute_90a"]
    assert listed(read(b"\x84\xa4name", "library/TensileLibrary_Type_HH_gfx90a.dat")) == ["gfx90a"]


@pytest.mark.parametrize(("bits", "level"), [(0, ""), (1, ""), (3, "x86-64-v2"), (7, "x86-64-v3"), (15, "x86-64-v4")])
def test_the_level_that_a_library_demands(bits, level):
    found = read(fake.elf(needs=bits))
    assert found.cpu is not None
    assert (found.cpu.machine, found.cpu.needs) == ("x86_64", level)


def test_instructions_compiled_for_processors():
    """LLVM compiles the same loop for three processors; what it wrote is found again."""
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    loop = """
    define void @add(ptr %a, ptr %b, <16 x i32> %c) {
      %x = load <16 x float>, ptr %a
      %s = fadd <16 x float> %x, %x
      store <16 x float> %s, ptr %b
      %i = extractelement <16 x i32> %c, i32 15
      %v = insertelement <16 x i32> poison, i32 %i, i32 0
      %w = shufflevector <16 x i32> %v, <16 x i32> poison, <16 x i32> zeroinitializer
      %y = add <16 x i32> %w, %c
      store <16 x i32> %y, ptr %a
      ret void
    }"""
    module = "\n".join(loop.replace("@add", f"@add{number}") for number in range(40))
    expected = {"x86-64": (), "sandybridge": ("avx",), "haswell": ("avx", "avx2"), "skylake-avx512": ("avx", "avx512f")}
    for processor, sets in expected.items():
        target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
        machine = target.create_target_machine(cpu=processor, opt=2)
        code = machine.emit_object(llvm.parse_assembly(module))
        found = read(fake.elf(code=code))
        assert found.cpu is not None
        assert found.cpu.looked_at == len(code)
        assert found.cpu.holds == sets, processor


def test_random_bytes_hold_no_instructions_and_no_images():
    code = random.Random(1).randbytes(8 << 20)
    found = read(fake.elf(code=code))
    assert found.cpu is not None
    assert (found.cpu.holds, found.objects) == ((), ())


@pytest.mark.parametrize(
    ("sign", "times", "size", "isa"),
    [
        (b"\xc5\xf8\x77", 2, 500, ("avx",)),
        (b"\xc5\xf8\x77", 1, 500, ()),
        (b"\x62\xf1\x7c\x48", 2, 500, ("avx512f",)),
        (b"\xc5\xf8\x77", 4, 8 << 20, ()),
        (b"\xc5\xf8\x77", 12, 8 << 20, ("avx",)),
    ],
)
def test_a_little_code_needs_few_signs_and_much_code_more(sign, times, size, isa):
    found = read(fake.elf(code=(sign + b"\x90") * times + bytes(size)))
    assert found.cpu is not None
    assert found.cpu.holds == isa


def test_more_code_than_the_budget_is_looked_at_in_spread_pieces():
    size = 4 * _BUDGET
    watch = Watch([(0, size)])
    piece = bytes(CHUNK)
    for offset in range(0, size, CHUNK):
        watch(offset, piece)
    assert watch.looked_at == _BUDGET


# Files that lie


def test_a_fatbin_that_says_it_is_longer_than_the_file():
    found = read(PLAIN[:-60])
    assert listed(found) == ["compute_120", "sm_75", "sm_90a"]  # the last header is there, its payload is not
    assert "the file ends at" in found.remarks[0]


def test_a_fatbin_whose_entry_is_longer_than_its_container():
    data = bytearray(PLAIN)
    second = 16 + 64 + 4096
    struct.pack_into("<Q", data, second + 8, 1 << 60)
    found = read(bytes(data) + PLAIN)
    assert f"contradicts itself at byte {second:,}" in found.remarks[0]
    assert found.count(CUBIN) == {"sm_75": 2, "sm_90a": 1}


@pytest.mark.parametrize("size", [0, 8])
def test_a_fatbin_that_says_it_ends_before_its_first_entry(size):
    data = bytearray(fake.fatbin(fake.entry(fake.CUBIN, 75)))
    data[8:16] = size.to_bytes(8, "little")
    found = read(fake.elf(bytes(data)))
    assert "contradicts itself at byte" in found.remarks[0]


@pytest.mark.parametrize("size", [0, 1, 3, 16, 71, 72, 100])
def test_a_fatbin_cut_off_anywhere(size):
    found = read(PLAIN[:size])
    assert bool(found.remarks) == bool(found.objects)


def test_a_number_that_only_looks_like_a_fatbin():
    assert not read(fake.elf(containers.FATBIN_MAGIC + b"\x48\x8b\x05" + bytes(80))).objects


def test_a_truncated_library_says_so():
    whole = fake.elf(PLAIN)
    found = read(whole[:-70])
    assert found.remarks[0].startswith("it is cut off")
    assert any("fatbin" in remark for remark in found.remarks)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_raise_nothing_and_end(seed):
    chance = random.Random(seed)
    whole = fake.elf(PLAIN + fake.plain_bundle("gfx906") + fake.compressed_bundle(2, fake.plain_bundle("gfx90a")))
    whole += fake.device_elf(190, 8, 75 << 8) + fake.pe(PLAIN) + fake.mach_o(PLAIN)
    data = bytearray(whole)
    for _ in range(chance.randrange(1, 40)):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 0xFF, chance.randrange(256)))
    read(bytes(data[: chance.randrange(len(data))]), seeks=seed % 2 == 0)


def test_many_tiny_containers_cost_linear_time_and_little_memory():
    one = fake.fatbin(fake.entry(fake.CUBIN, 80, payload=b""))
    found = read(one * 40_000)
    assert found.count(CUBIN) == {"sm_80": 40_000}
    assert len(found.objects) == 1


def test_broken_compressed_bundles_are_remarks():
    broken = bytearray(fake.compressed_bundle(2, fake.plain_bundle("gfx90a")))
    broken[30] ^= 0xFF
    assert "cannot be read" in read(bytes(broken)).remarks[0]
    with pytest.raises(stream.CannotUnpack, match="broken"):
        stream.deflate(b"nonsense", 10)


# Places


def test_a_folder_is_walked_once_whatever_links_to_it(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libx.so.1").write_bytes(fake.elf(PLAIN))
    (tmp_path / "lib" / "libx.so").symlink_to("libx.so.1")
    (tmp_path / "lib" / "loop").symlink_to(tmp_path)
    (tmp_path / "notes.txt").write_bytes(PLAIN)
    (tmp_path / "data").write_bytes(b"nothing of the kind")
    remarks: list[str] = []
    assert [found.name for found in places.libraries(tmp_path, remarks)] == ["lib/libx.so"]
    assert not remarks


def test_an_archive_without_its_end(tmp_path):
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(fake.archive({"a.so": fake.elf(PLAIN)})[:-30])
    with pytest.raises(BadFile, match="without its end"):
        list(places.libraries(wheel, []))


def test_what_is_no_library_is_refused_with_what_it_is(tmp_path):
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(BadFile, match="weights, not code") as raised:
        list(places.libraries(model, []))
    assert raised.value.ways_out == (f"rung check {model}",)
    text = tmp_path / "text"
    for content in (b"", b"hello", b"MZ", b"\x7fELF"):
        text.write_bytes(content)
        with pytest.raises(BadFile, match="neither a library nor GPU code"):
            list(places.libraries(text, []))


def test_device_code_of_which_nothing_can_be_read_is_called_what_it_is(tmp_path):
    lying = tmp_path / "x.fatbin"
    size = struct.pack("<Q", 1 << 60)
    for begin, what in (
        (containers.FATBIN_MAGIC + size, "begins as a fatbin does"),
        (b"CCOB" + struct.pack("<HHIIQ", 2, 1, 1 << 31, 1 << 31, 0), "begins as a compressed offload bundle does"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + size, "begins as an offload bundle does"),
    ):
        lying.write_bytes(begin + bytes(64))
        with pytest.raises(BadFile, match=what):
            list(places.libraries(lying, []))


def test_a_device_file_is_not_opened():
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        list(places.libraries(Path("/dev/zero"), []))


def test_a_java_class_is_no_mach_o_file():
    assert heads.read(b"\xca\xfe\xba\xbe\x00\x00\x00\x34" + bytes(100)) is None


def test_what_is_skipped_is_not_kept():
    """A payload of 64 MB in a stream that cannot seek: no more than a few pieces are held at a time."""

    class Counted(io.BytesIO):
        largest = 0

        def read(self, size: int | None = -1) -> bytes:
            Counted.largest = max(Counted.largest, size or 0)
            return super().read(size)

    data = fake.fatbin(fake.entry(fake.CUBIN, 80, payload=bytes(64 << 20))) + PLAIN
    assert scan("x", Counted(data), len(data), b"", seeks=False).count(CUBIN) == {"sm_80": 1, "sm_75": 1, "sm_90a": 1}
    assert Counted.largest == CHUNK
