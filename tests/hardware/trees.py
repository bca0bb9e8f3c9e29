"""Folders like /proc and /sys, as recorded on machines, for the tests of identification."""

ICE_LAKE = """\
processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Processor @ 2.80GHz
flags\t\t: fpu sse4_2 fma f16c avx avx2 avx512f avx512dq avx512bw avx512vl avx512vbmi avx512_vnni

processor\t: 1
model name\t: another name
flags\t\t: fpu sse4_2 fma f16c avx avx2 avx512f avx512dq avx512bw avx512vl avx512vbmi avx512_vnni avx512_fp16
"""

GRAVITON = """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm asimddp ssbs
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
"""

MEMINFO = (
    "MemTotal:       16777216 kB\nMemFree:         1000000 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0\n"
)


def tree(root, files):
    """Writes files (text by path) below ``root``; a text ``-> target`` makes a symbolic link."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> "))
        else:
            path.write_text(text)
    return root


def machine(root, cpuinfo=ICE_LAKE, cpus=4, threads_per_core=2, more=None):
    """A machine with that many hardware threads, caches of 48 kB, 1.25 MB and 48 MB, and two NUMA nodes."""
    files = {"proc/cpuinfo": cpuinfo, "proc/meminfo": MEMINFO}
    for number in range(cpus):
        folder = f"sys/devices/system/cpu/cpu{number}"
        first = number - number % threads_per_core
        files[f"{folder}/topology/thread_siblings_list"] = f"{first}-{first + threads_per_core - 1}\n"
        for index, (level, kind, size) in enumerate(
            [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "1280K"), (3, "Unified", "48M")]
        ):
            cache = f"{folder}/cache/index{index}"
            files |= {f"{cache}/level": f"{level}\n", f"{cache}/type": f"{kind}\n", f"{cache}/size": f"{size}\n"}
    for node in range(2):
        files[f"sys/devices/system/node/node{node}/cpulist"] = ""
    return tree(root, files | (more or {}))


def card(address, vendor, device, *, kind="0x030000", driver="", more=None):
    """The files of a card on the PCI bus: ``address`` is 0000:01:00.0."""
    folder = f"sys/bus/pci/devices/{address}"
    files = {f"{folder}/vendor": f"{vendor}\n", f"{folder}/device": f"{device}\n", f"{folder}/class": f"{kind}\n"}
    if driver:
        files |= {f"sys/bus/pci/drivers/{driver}/module": "", f"{folder}/driver": f"-> ../../drivers/{driver}"}
    return files | {f"{folder}/{name}": text for name, text in (more or {}).items()}


def cores(groups, counters=True, threads_per_core=None, more=None):
    """The files of a processor with kinds of cores: (name of the counters, cores, ``cpu_capacity`` or clock) of each.

    ``threads_per_core``: hardware threads of a core, by kind.
    """
    files, number = {}, 0
    for index, (name, count, speed) in enumerate(groups):
        per_core, begin = (threads_per_core or [1] * len(groups))[index], number
        for _ in range(count):
            siblings = f"{number}-{number + per_core - 1}" if per_core > 1 else str(number)
            for cpu in range(number, number + per_core):
                folder = f"sys/devices/system/cpu/cpu{cpu}"
                files[f"{folder}/topology/core_cpus_list"] = siblings
                if speed:
                    files[f"{folder}/{'cpufreq/cpuinfo_max_freq' if counters else 'cpu_capacity'}"] = str(speed)
            number += per_core
        if counters and name:
            files[f"sys/devices/{name}/cpus"] = f"{begin}-{number - 1}\n"
    return files | (more or {}), number
