"""Which image runs where, what is missing in it, and what a library is worth on a device."""

import json
from dataclasses import replace

import pytest

from rung.binaries import answer as answer_module
from rung.binaries.answer import Answer, common, group, serves, weakest
from rung.binaries.images import CODE_OBJECT, CUBIN, LTO, PTX, CpuCode, Image, Library, Object
from rung.binaries.judge import (
    choose_amd,
    choose_cuda,
    cuda_for_ptx,
    guarded,
    judge,
    missing_features,
    runs_on_cuda,
    targets,
)
from rung.cli.views import inspect as views
from rung.core.types import Capability, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.hardware.catalog.rows import architectures, version


def image(name: str, isa: str = "") -> Image:
    kind = PTX if name.startswith("compute") else CUBIN if name.startswith("sm") else CODE_OBJECT
    return Image(LTO if name.startswith("lto") else kind, name, isa)


def library(*objects: str, name: str = "lib.so", count: int = 1) -> Library:
    contents = tuple(Object("fatbin", tuple(map(image, text.split())), count) for text in objects)
    return Library(name, 1000, "ELF library", contents, CpuCode("x86_64"))


@pytest.mark.parametrize(
    ("name", "runs", "not_on"),
    [
        # NVIDIA's compatibility guides: a cubin in its major number from its minor number on
        ("sm_50", "5.0 5.2 5.3", "6.0 3.7 7.0"),
        ("sm_53", "5.3", "5.0 5.2 6.0"),
        ("sm_60", "6.0 6.1 6.2", "5.3 7.0"),
        ("sm_62", "6.2", "6.1 6.0"),
        ("sm_70", "7.0 7.2 7.5", "8.0 6.1"),
        ("sm_80", "8.0 8.6 8.7 8.9", "9.0 7.5"),
        ("sm_90", "9.0", "10.0 8.9"),
        ("sm_90a", "9.0", "10.0 12.0 8.9"),
        ("sm_100", "10.0 10.3", "11.0 12.0 9.0"),
        ("sm_100f", "10.0 10.3", "11.0 12.0"),
        ("sm_100a", "10.0", "10.3"),
        ("sm_120f", "12.0 12.1", "10.0 11.0"),
        ("sm_121", "12.1", "12.0"),
        # PTX on everything later, a on one, f in its family
        ("compute_52", "5.2 5.3 6.1 7.5 8.6 9.0 12.0", "5.0 3.7"),
        ("compute_90a", "9.0", "10.0 12.0 8.9"),
        ("compute_100f", "10.0 10.3", "11.0 12.0"),
        ("lto_80", "", "8.0 8.6"),
        ("gfx1030", "", "8.0"),
    ],
)
def test_the_rules_of_compatibility(name, runs, not_on):
    assert [cc for cc in runs.split() if not runs_on_cuda(image(name), version(cc))] == []
    assert [cc for cc in not_on.split() if runs_on_cuda(image(name), version(cc))] == []


@pytest.mark.parametrize(
    ("images", "device", "taken"),
    [
        ("sm_60 sm_61 sm_70 compute_70", "6.1", "sm_61"),
        ("sm_60 sm_70 compute_60", "6.1", "sm_60"),
        ("sm_80 sm_86 compute_80", "8.9", "sm_86"),
        ("sm_80 compute_50 compute_80", "9.0", "compute_80"),
        ("sm_90 sm_90a", "9.0", "sm_90a"),
        ("sm_100 sm_100f sm_100a", "10.0", "sm_100a"),
        ("sm_100 sm_100f sm_100a", "10.3", "sm_100f"),
        ("sm_75 sm_80", "6.1", None),
    ],
)
def test_the_image_that_the_driver_takes(images, device, taken):
    found = choose_cuda([image(name) for name in images.split()], version(device))
    assert (found.target if found else None) == taken


@pytest.mark.parametrize(
    ("images", "device", "taken"),
    [
        ("gfx1030 gfx1031", "gfx1031", "gfx1031"),
        ("gfx1030", "gfx1031", None),
        ("gfx10-3-generic", "gfx1031", "gfx10-3-generic"),
        ("gfx10-3-generic gfx1031", "gfx1031", "gfx1031"),
        ("gfx90a:xnack- gfx90a:xnack+", "gfx90a:xnack+", "gfx90a:xnack+"),
        ("gfx90a:sramecc+:xnack-", "gfx90a", "gfx90a:sramecc+:xnack-"),
        ("gfx906", "gfx906:xnack-", "gfx906"),
        ("gfx9-generic", "gfx90a", None),
    ],
)
def test_the_code_object_that_an_amd_gpu_takes(images, device, taken):
    found = choose_amd([image(name) for name in images.split()], device)
    assert (found.target if found else None) == taken


@pytest.mark.parametrize(
    ("name", "device", "words"),
    [
        ("sm_60", "6.1", ["dp4a"]),
        ("sm_61", "6.1", []),
        ("sm_70", "7.5", ["int8", "ldmatrix"]),
        ("sm_80", "8.6", []),
        ("sm_80", "8.9", ["fp8"]),
        ("sm_90", "9.0", ["wgmma"]),
        ("sm_90a", "9.0", []),
        ("sm_100f", "10.0", []),
        ("compute_90", "12.0", ["f32x2", "fp4"]),
    ],
)
def test_what_code_for_an_older_target_lacks(name, device, words):
    found = missing_features(image(name), version(device))
    assert len(found) == len(words)
    assert all(word in what for word, what in zip(words, found, strict=True))


def test_guarded_rows_are_sound():
    capabilities = {row.capability for row in architectures().values() if row.capability}
    for row in guarded():
        assert row["status"] in ("measured", "unsure")
        assert row["source"]
        assert version(row["from"]) in capabilities | {(7, 2)}, row


@pytest.mark.parametrize(
    ("isa", "cuda"),
    [("6.0", "9.0"), ("6.5", "10.2"), ("7.8", "11.8"), ("8.5", "12.5"), ("8.7", "12.8"), ("9.0", "13.0")],
)
def test_the_driver_that_ptx_needs(isa, cuda):
    assert cuda_for_ptx(isa) == cuda


def test_every_capability_of_the_catalog_runs_its_own_cubin():
    for row in architectures().values():
        if row.capability:
            assert row.cc in serves(library(f"sm_{row.cc.replace('.', '')}"))


def test_a_llamafile_on_a_pascal_card_runs_without_dp4a():
    """The founding case: compiled for 500,600,700,750,800,900, run on 6.1."""
    found = judge(library("sm_50 sm_60 sm_70 sm_75 sm_80 sm_90"), catalog.device("p2200"))
    assert (found.runs, found.images) == ("yes", ("sm_60",))
    assert found.missing == ("dp4a (four int8 products at once)",)


def test_objects_that_hold_nothing_for_the_device_are_counted():
    found = judge(library("sm_75 compute_75", "sm_80", "sm_90a"), catalog.device("2080ti"))
    assert (found.runs, found.fit, found.objects) == ("partly", 1, 3)
    assert "1 object of 3 holds nothing for 7.5, only sm_80" in found.reason


def test_objects_for_one_special_target_are_not_held_against_a_library():
    assert judge(library("sm_80", "sm_90a"), catalog.device("3090")).runs == "yes"
    reached = replace(catalog.device("3090"), kind="webgpu")
    assert judge(library("sm_80", "sm_90a"), reached).runs == "other"


def test_what_a_program_picks_itself_is_not_held_against_it():
    subject = Library("x", 1, "", (Object("data", (image("sm_100"),), 29), Object("fatbin", (image("sm_80"),))))
    assert judge(subject, catalog.device("3090")).runs == "yes"


def test_objects_without_kernels_do_not_decide():
    stub, real = Object("empty", (image("sm_75"),)), Object("fatbin", (image("sm_80"),))
    assert judge(Library("x", 1, "", (stub, real)), catalog.device("2080ti")).runs == "no"
    assert weakest([library("sm_50 sm_80"), Library("stub.so", 1, "", (stub,))]) is None


def test_only_ptx_has_to_be_compiled_by_the_driver():
    found = judge(library("sm_80 compute_80"), catalog.device("5090"))
    assert (found.runs, found.images) == ("compiled", ("compute_80",))


def test_a_driver_that_is_too_old_for_the_ptx():
    card = catalog.device("5090")
    new = Library("x", 1, "", (Object("fatbin", (image("compute_90", "8.7"),)),))
    for cuda, runs in (("12.8", "compiled"), ("12.4", "no")):
        found = judge(new, type(card)(**{**card.__dict__, "details": FrozenDict(cuda=cuda)}))
        assert found.runs == runs
    assert "PTX 8.7 needs a driver with CUDA 12.8, this one has 12.4" in found.reason


def test_other_devices_code_and_no_code():
    assert judge(library("gfx1030"), catalog.device("3090")).runs == "other"
    assert judge(library("sm_80"), catalog.device("7900 xtx")).runs == "other"
    assert judge(library("lto_80"), catalog.device("3090")).runs == "unknown"
    assert judge(library(), catalog.device("3090")).runs == "none"


def test_an_amd_card_that_runs_another_ones_code_when_told():
    found = judge(library("gfx1030 gfx90a"), catalog.device("rx 6700 xt"))
    assert found.runs == "no"
    assert "HSA_OVERRIDE_GFX_VERSION" in found.reason


def test_processors():
    device = catalog.device("9950x")
    old = device.with_capabilities([Capability("isa.avx512f", Level.ABSENT, Proof.TABLE)])
    code = Library("x", 1, "ELF library", (), CpuCode("x86_64", "", ("avx", "avx512f")))
    assert judge(code, device).runs == "yes"
    assert judge(code, old).runs == "unknown"
    assert "cannot be told" in judge(code, old).reason
    needs = Library("x", 1, "ELF library", (), CpuCode("x86_64", "x86-64-v4"))
    assert judge(needs, old).runs == "no"
    assert judge(Library("x", 1, "ELF library", (), CpuCode("aarch64")), device).runs == "no"


def test_targets_are_in_the_order_of_their_numbers():
    names = ["compute_120", "gfx90a", "sm_100", "gfx1030", "sm_75", "sm_90a", "sm_90", "gfx906", "compute_75"]
    assert targets(names) == [
        "sm_75",
        "sm_90",
        "sm_90a",
        "sm_100",
        "compute_75",
        "compute_120",
        "gfx906",
        "gfx90a",
        "gfx1030",
    ]


def test_what_all_libraries_have_and_which_is_the_weakest():
    wide, narrow = library("sm_50 sm_60 sm_70 sm_80", name="a.so"), library("sm_80", name="b.so")
    amd = library("gfx1030", name="c.so")
    assert common([wide, narrow, library(name="none.so")]) == serves(narrow)
    assert weakest([wide, narrow, amd]) is narrow
    assert weakest([narrow, library("sm_80 sm_80", name="d.so")]) is None
    assert common([]) == ()


def test_builds_for_several_toolkits_count_as_one():
    old, new = library("sm_60", name="x/lib_cuda118.so"), library("sm_90", name="x/lib_cuda130.so")
    assert group(old) == group(new)
    assert Answer("x", (old, new), (), catalog.device("p2200")).ok
    other = library("sm_90", name="x/libother.so")
    answer = Answer("x", (old, new, other), (), catalog.device("p2200"))
    assert (answer.ok, answer.failing) == (False, (2,))


def test_launchers_for_several_processors_do_not_stand_against_an_environment():
    def launcher(name: str, machine: str) -> Library:
        return Library(f"setuptools/{name}.exe", 1000, "PE program", (), CpuCode(machine))

    launchers = [launcher("cli-32", "x86"), launcher("cli-64", "x86_64"), launcher("cli-arm64", "aarch64")]
    assert Answer("x", (*launchers, library()), (), catalog.device("Ryzen 9 7950X")).ok
    assert not Answer("x", (launchers[0], launchers[2]), (), catalog.device("Ryzen 9 7950X")).ok


def test_code_for_other_makers_devices_alone_stands_against_a_device():
    assert not Answer("x", (library("gfx1030"),), (), catalog.device("3090")).ok
    assert Answer("x", (library("gfx1030"), library("sm_80", name="b.so")), (), catalog.device("3090")).ok
    assert Answer("x", (library(),), (), catalog.device("3090")).ok


def test_kernel_files_of_a_folder_count_as_one():
    files = tuple(
        Library(f"library/K_{name}.hsaco", 1, "AMD code object", (Object("alone", (image(name),)),))
        for name in ("gfx906", "gfx1030")
    )
    assert Answer("x", files, (), catalog.device("rx 6800")).ok


def test_each_library_is_judged_once(monkeypatch):
    """An environment has hundreds of libraries, a wheel of kernels thousands."""
    judged = []
    monkeypatch.setattr(
        answer_module, "judge", lambda library, device: judged.append(library) or judge(library, device)
    )
    many = tuple(library("sm_80", name=f"{number}.so") for number in range(20))
    answer = Answer("x", many, (), catalog.device("p2200"))
    shown = [index for index in range(20) if views.matters(answer, index)]
    views.listing(answer, shown)
    assert len(list(views.conclusion(answer))) == 2
    answer.to_json()
    assert len(judged) == 20


def test_answers_are_json():
    answer = Answer("x", (library("sm_80 compute_80"),), ("a remark",), catalog.device("3090"))
    data = json.loads(json.dumps(answer.to_json()))
    assert data["libraries"][0]["cubins"] == {"sm_80": 1}
    assert data["libraries"][0]["device"]["runs"] == "yes"
    later = {row.cc for row in architectures().values() if row.capability and row.capability >= (8, 0)}
    assert set(data["runs_on"]) == later
