"""The choice of torch: a walk over all architectures, Pythons, systems and drivers, then the cases people have."""

import itertools
from dataclasses import replace

import pytest
from tests.support.rows import each_row

from rung.core.errors import DeviceError, UnknownDevice, UsageError
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.hardware.catalog import releases
from rung.hardware.catalog.releases import builds, newest
from rung.hardware.catalog.rows import architectures, numbers, products, version
from rung.hardware.catalog.support import runs_on
from rung.software.companions import Host
from rung.software.installed import devices_here, host_of, judge
from rung.software.setup import choose, lacks, serves

PYTHONS = ("3.6", "3.12", "3.15")
PLACES = (
    ("linux", "x86_64"),
    ("linux", "aarch64"),
    ("windows", "x86_64"),
    ("macos", "aarch64"),
    ("macos", "x86_64"),
)
DRIVERS = ("", "470.256.02", "535.54", "595.10")


def host(name, driver="", system="", python="3.12"):
    return host_of(catalog.device(name), ("linux", "x86_64"), python, driver, system)


def chosen(name, **more):
    return choose([host(name, **more)])


def build_of(setup):
    """The catalog's build that a setup's torch is, with its exact version taken off."""
    release, _, name = setup.torch.version.partition("+")
    release = release.partition("a")[0]
    same = [b for b in builds() if version(b.release) == version(release) and (b.file or name in (b.name, b.local))]
    serving = [b for b in same if serves(b, setup.hosts[0])]
    return serving[0] if serving else next(b for b in same if b.name == "cpu")


@pytest.mark.parametrize("key", architectures())
def test_every_card_gets_an_answer_that_holds(key):
    row = architectures()[key]
    drivers = DRIVERS if row.kind == "cuda" else ("",)
    for (system, machine), python, driver in itertools.product(PLACES, PYTHONS, drivers):
        at = Host("a card", key, driver, system, machine, python)
        found = choose([at])
        assert found is not None
        build = build_of(found)
        assert found.torch.reason
        assert all(one.reason for one in found.packages)
        # the code of the build runs there, or nobody's does and it computes on the processor
        if not serves(build, at):
            assert build.backend == "cpu"
            assert not [b for b in builds() if serves(b, at)]
        # what does not hold is said; what holds is not
        assert found.needs == tuple(lacks(build, at).values())
        if not found.needs:
            low, high = releases.pythons(build)
            assert version(low) <= version(python) <= version(high)
            assert at.platform in releases.places(build)
            if driver and (minimum := releases.minimum_driver(build, system, row.min_cuda)):
                assert numbers(driver) >= numbers(minimum)
        # and nothing newer would have done
        better = [b for b in builds()[: builds().index(build)] if serves(b, at) and not lacks(b, at)]
        assert not better


@pytest.mark.parametrize("key", architectures())
def test_what_it_chooses_is_judged_to_fit(key):
    """The answer and ``--check`` are of one mind: what was chosen fits once it is installed, and needs are no fit."""
    drivers = DRIVERS if architectures()[key].kind == "cuda" else ("",)
    for (system, machine), python, driver in itertools.product(PLACES, ("3.8", "3.11", "3.14"), drivers):
        at = Host("a card", key, driver, system, machine, python)
        found = choose([at])
        build = build_of(found)
        if "system" in lacks(build, at):  # no such torch can be there
            continue
        keys = {"cuda": ("torch_cuda", build.toolkit), "hip": ("torch_hip", build.name[4:]), "xpu": ("torch_xpu", "1")}
        installed = {"torch": found.torch.version} | dict([keys[build.backend]] if build.backend in keys else [])
        judged = judge(installed, at, found)[0]
        assert judged.fits is ("driver" not in lacks(build, at)), (at, judged)
        assert judged.text.startswith(f"torch {found.torch.version} ")
        assert all(bool(one.command) == (one.how in ("install", "optional")) for one in found.packages)


@each_row("product", products(), lambda p: p.name)
def test_every_product_gets_a_command(product):
    found = choose([host_of(catalog.device(product.name), ("linux", "x86_64"), "3.12")])
    assert found.torch.command
    assert found.torch.version
    build = build_of(found)
    row = architectures()[product.arch]
    if row.capability and build.backend == "cuda":
        assert runs_on(" ".join(build.code), "", row.capability)


@pytest.mark.parametrize(
    ("name", "more", "torch"),
    [
        # the 2016 card: the last build that has code for it, in every driver that it can have
        ("gtx 1080", {}, "2.14.1+cu126"),
        ("p2200", {"driver": "535.54"}, "2.14.1+cu126"),
        ("p2200", {"driver": "470.82"}, "2.7.1+cu118"),
        ("v100", {}, "2.14.1+cu126"),
        ("gtx 980", {"system": "windows"}, "2.14.1+cu126"),
        # new cards get the newest, unless the driver is older than its CUDA
        ("rtx 4090", {}, "2.15.0+cu132"),
        ("rtx 4090", {"driver": "535.54"}, "2.14.1+cu126"),
        ("rtx 5090", {"driver": "570.86"}, "2.11.0+cu128"),
        ("rtx 4090", {"python": "3.10"}, "2.14.1+cu130"),
        ("rtx 4090", {"python": "3.9"}, "2.8.0+cu128"),
        ("k80", {}, "2.7.1+cu118"),
        ("dgx spark", {}, "2.15.0+cu132"),
        ("rx 7900 xtx", {}, "2.14.1+rocm7.14"),
        ("rx 580", {"python": "3.10"}, "1.12.1+rocm5.1.1"),
        ("jetson nano", {"python": "3.6"}, "1.10.0"),
        ("jetson agx orin", {"python": "3.10"}, "2.8.0+cu126"),
        ("arc a770", {"system": "windows"}, "2.14.1+xpu"),
        ("m1", {}, "2.15.0"),
        ("ryzen 9 7950x", {}, "2.15.0+cpu"),
    ],
)
def test_which_torch_a_card_gets(name, more, torch):
    found = chosen(name, **more)
    assert found.torch.version == torch
    assert not found.needs


def test_the_commands_are_exact():
    assert chosen("p2200").torch.command == (
        "pip install torch==2.14.1+cu126 --index-url https://download.pytorch.org/whl/cu126"
    )
    # what PyPI gives anyway takes no index; on Windows PyPI has no CUDA
    assert chosen("rtx 4090").torch.command == "pip install torch==2.15.0"
    assert "whl/cu132" in chosen("rtx 4090", system="windows").torch.command
    assert chosen("m1").torch.command == "pip install torch==2.15.0"
    assert chosen("rx 580", python="3.10").torch.command.endswith("whl/rocm5.1.1")
    own = choose([host("p2200")], indexes=("--index-url", "https://mirror.example/simple"))
    assert own.torch.arguments == ("torch==2.14.1+cu126", "--index-url", "https://mirror.example/simple")
    mirrored = choose([host("4090")], "2.14.1+cu126", ("--index-url", "https://mirror.example/simple?a=1&b=2"))
    commands = [package.command for package in mirrored.packages if package.command]
    assert len(commands) > 2
    assert all(line.count("--index-url") == 1 and line.endswith('simple?a=1&b=2"') for line in commands)


def test_a_card_that_torch_has_left_behind_is_told_so():
    notes = " ".join(chosen("gtx 1080").notes)
    assert "torch 2.15 has no code for 6.1; 2.14 is the last that has" in notes
    assert "Driver branch 580 is the last" in notes
    assert "bfloat16 is emulated" in notes
    assert not chosen("rtx 4090").notes


def test_a_newer_driver_is_named_when_it_would_give_more():
    refused = chosen("rtx 4090", driver="535.54").refused
    assert (refused[0].build, refused[0].reason) == (
        "torch 2.15+cu132",
        "asks for NVIDIA driver 580 or newer instead of 535.54",
    )


def test_what_must_change_first_is_said_with_what_fits_as_it_is():
    found = chosen("rx 5700 xt")
    assert found.torch.version == "1.13.1+rocm5.2"
    assert found.needs == ("Python 3.7 to 3.10 instead of 3.12",)
    assert found.otherwise.version == "2.15.0+cpu"
    # a driver that does not know the card yet, though it runs programs of CUDA 12; and one that does not any more
    assert chosen("rtx 5090", driver="535.54").needs == ("NVIDIA driver 580 or newer instead of 535.54",)
    assert "NVIDIA driver 570.26 or newer" in chosen("rtx 5090", driver="571.1").torch.reason
    assert "of branch 580" in chosen("gtx 1080", driver="595.10").needs[0]
    assert "Linux on x86_64 or Windows" in chosen("rtx 4090", system="macos-x86_64").needs[0]


def test_nothing_is_ever_installed_for_a_card_without_code():
    keys = [key for key in architectures() if newest(key) is None]
    for key in keys:
        found = choose([Host("a card", key)])
        assert found.torch.version.endswith("+cpu")
        assert "no released torch for x86_64 carries code" in found.torch.reason
        assert "left unused" in found.notes[0]


def test_one_build_for_a_fleet():
    fleet = [host(name) for name in ("v100", "t4", "rtx 4090", "gtx 1080")]
    found = choose(fleet)
    assert found.torch.version == "2.14.1+cu126"
    assert found.needs == ()
    # int8 in bitsandbytes runs on two of four, and it is said of which not
    bitsandbytes = next(one for one in found.packages if one.package == "bitsandbytes")
    assert "this is 7.0" in bitsandbytes.reason
    assert choose([host("gtx 1080"), host("rtx 5090")]) is None
    assert choose([host("v100"), host("rx 7900 xtx")]) is None


def test_a_torch_that_is_asked_for():
    assert choose([host("v100")], "2.6").torch.version == "2.6.0+cu124"
    assert choose([host("v100")], "2.7.0").torch.arguments[0] == "torch==2.7.0"
    assert choose([host("v100")], "2.7.0+cu118").torch.arguments[0] == "torch==2.7.0+cu118"
    assert choose([host("v100")], "2.15") is None
    assert choose([host("v100")], "9.9") is None
    assert choose([host("v100")], "2.15+cpu").torch.version == "2.15.0+cpu"


@pytest.mark.parametrize(
    ("name", "more", "package", "version_", "how", "said"),
    [
        ("v100", {}, "bitsandbytes", "0.50.2", "install", "LLM.int8() not: needs compute capability 7.5"),
        ("gtx 980", {}, "bitsandbytes", "0.47.0", "install", "nf4 and fp4"),
        ("k80", {}, "bitsandbytes", "", "none", "rung quantizes by itself"),
        ("rtx 4090", {"python": "3.9"}, "bitsandbytes", "0.47.0", "install", "LLM.int8()"),
        ("rx 7900 xtx", {}, "bitsandbytes", "0.50.2", "install", "nf4"),
        ("v100", {}, "triton", "3.8", "included", "comes with torch"),
        ("p2200", {}, "triton", "3.8", "included", "Triton needs compute capability 7.0"),
        ("rtx 4090", {"system": "windows", "driver": "560.1"}, "triton", "3.8", "optional", "torch.compile"),
        ("rtx 4090", {"system": "windows"}, "triton", "", "none", "nobody publishes Triton 3.9 for Windows"),
        ("m1", {}, "triton", "", "none", "compiles for GPUs"),
        ("gtx 1080", {"system": "windows"}, "triton", "", "none", "needs compute capability 7.0"),
        ("k80", {}, "bitsandbytes", "", "none", "needs compute capability 6.0, this is 3.7"),
        ("7900 xtx", {}, "xformers", "", "none", "of wheels for ROCm 7 nothing is known"),
        ("t4", {}, "flash-attn", "", "none", "needs compute capability 8.0, this is 7.5"),
        ("rtx 4090", {}, "flash-attn", "2.8", "optional", "nvcc of CUDA 13.2"),
        ("mi210", {}, "flash-attn", "2.8", "optional", "hipcc of ROCm 7"),
        ("rtx 4090", {"system": "windows"}, "flash-attn", "", "none", "not published for Windows on x86_64"),
        ("rtx 4090", {}, "xformers", "", "none", "built for CUDA 12.6 12.8 13.0, not 13.2"),
        ("rtx 4090", {"python": "3.10"}, "xformers", "0.0.35", "optional", "only for programs that ask for it"),
        ("v100", {}, "xformers", "", "none", "needs compute capability 7.5"),
    ],
)
def test_what_goes_with_it(name, more, package, version_, how, said):
    found = next(one for one in chosen(name, **more).packages if one.package == package)
    assert (found.version, found.how) == (version_, how)
    assert said in found.reason
    assert bool(found.command) == (how in ("install", "optional"))


def test_versions_with_signs_of_the_shell_are_quoted():
    found = next(p for p in chosen("rtx 4090", system="windows", driver="560.1").packages if p.package == "triton")
    assert found.command == 'pip install "triton-windows>=3.8,<3.9"'


def test_an_override_is_an_environment_variable():
    assert chosen("rx 6700 xt").environment == ("HSA_OVERRIDE_GFX_VERSION=10.3.0",)
    assert chosen("rx 6900 xt").environment == ()


def test_an_unknown_architecture_and_an_unknown_system_are_refused():
    from dataclasses import replace

    with pytest.raises(UnknownDevice, match="sm_999"):
        host_of(replace(catalog.device("p2200"), arch="sm_999"), ("linux", "x86_64"), "3.12")
    for wrong in ("amiga", "linux-z80"):
        with pytest.raises(UsageError, match=wrong):
            host_of(catalog.device("p2200"), ("linux", "x86_64"), "3.12", system=wrong)


def test_what_pip_cannot_fetch_has_a_command_all_the_same():
    nano = chosen("jetson nano", python="3.6").torch
    assert nano.arguments == ()
    assert nano.command.startswith("wget https://nvidia.box.com/")
    assert nano.command.endswith("&& pip install ./torch-1.10.0-cp36-cp36m-linux_aarch64.whl")
    assert "repo.amd.com" in " ".join(chosen("7900 xtx", system="windows").notes)


def test_a_setup_is_json_both_ways():
    found = chosen("rx 5700 xt")
    assert type(found).from_json(found.to_json()) == found


def test_a_card_that_webgpu_reaches_too_is_chosen_for_once(monkeypatch):
    from rung.hardware import detect

    cards = [catalog.device("3060"), catalog.device("3060")]
    twin = replace(cards[1], id="webgpu:0", kind="webgpu", details=FrozenDict(card=cards[0].id))
    alone = replace(twin, id="webgpu:1", details=FrozenDict())
    processor = detect.devices(cached=False)[0]
    monkeypatch.setattr(detect, "devices", lambda: (processor, cards[0], twin))
    assert devices_here() == ((cards[0],), ())
    monkeypatch.setattr(detect, "devices", lambda: (processor, alone))
    assert devices_here() == ((processor,), (alone,))


def test_no_software_is_made_for_a_software_adapter():
    adapter = replace(catalog.device("3060"), kind="webgpu", arch="software", name="llvmpipe", real=True)
    with pytest.raises(DeviceError, match="computes on the processor"):
        host_of(adapter, ("linux", "x86_64"), "3.12")
