"""Machine code of the shaders that multiply, for AMD's GPUs, without a card: instructions a weight, registers, spills.

    python benchmarks/webgpu_instructions.py [--formats q4_0,q8_0] [--families navi21] [--int8] [--summed] [--rows 16]

Mesa's RADV is the compiler that users of these cards run, and compiles for a family that is not there
(``RADV_FORCE_FAMILY``). A library between wgpu and the Vulkan loader keeps the SPIR-V of our shaders. Needs ``pip
install vulkan``, a C compiler and Debian's ``libvulkan1`` and ``mesa-vulkan-drivers``.

The loop over columns is counted, and the loads that it has under way at once. ``--int8``: with activations as signed
bytes (``webgpu.int8``), of the families that multiply four of them at once, which alone are given that rung.
``--write`` writes the most of the families, by format, to ``rung/kernels/webgpu/instructions.table``, which plans read;
without it the table is compared. ``--rows``: of a product of several rows, whose counts are printed only. ``--summed``:
of a product behind which a norm was added to the activations, whose units each workgroup makes; 256 threads do so for
the 4,096 columns of 32 rows. The instructions of the whole shader, whose loops over these are unrolled, come last.

The bars: no spill; of q4_0, q4_1 and q8_0 at most 4 instructions a weight (1.5 with ``--int8``) and at least 8 loads
under way. Ends with 1 where one is missed or the table says otherwise. Nothing of this says how fast a card is.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rung.kernels.webgpu import instructions

FAMILIES = {
    "polaris10": "RX 580",
    "vega10": "Vega 64",
    "vega20": "Radeon VII",
    "navi10": "RX 5700 XT",
    "navi21": "RX 6800 XT",
    "gfx1100": "RX 7900 XTX",
}
FORMATS = (
    *("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "nf4:64", "fp4:64", "int8"),
)
BARRED, LOADS = ("q4_0", "q4_1", "q8_0"), 8
#: Most instructions a weight of these, in float32 and in int8.
MOST = 4.0, 1.5
#: The families that multiply four signed bytes at once.
DOTS = ("vega20", "navi21", "gfx1100")
COLUMNS = 4096

#: What a load of memory begins with.
LOAD = r"\t(buffer|global)_load"

KEEP = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void (*Call)(void);
typedef Call (*Find)(void *, const char *);
typedef struct { int type; const void *next; uint32_t flags; size_t size; const uint32_t *code; } Module;
static Find of_instance, of_device;
static int (*create)(void *, const Module *, const void *, void *);
static int keep(void *device, const Module *module, const void *memory, void *made) {
    const char *path = getenv("KEEP_SPIRV");
    FILE *file = path ? fopen(path, "wb") : NULL;
    if (file) { fwrite(module->code, 1, module->size, file); fclose(file); }
    return create(device, module, memory, made);
}
static Call kept(Call found, const char *name) {
    if (!found || strcmp(name, "vkCreateShaderModule")) return found;
    create = (void *)found;
    return (Call)keep;
}
static Call device_call(void *device, const char *name) { return kept(of_device(device, name), name); }
Call vkGetInstanceProcAddr(void *instance, const char *name) {
    if (!of_instance) of_instance = (Find)dlsym(dlopen(getenv("VULKAN_LOADER"), RTLD_NOW), "vkGetInstanceProcAddr");
    Call found = of_instance(instance, name);
    if (!found || strcmp(name, "vkGetDeviceProcAddr")) return kept(found, name);
    of_device = (Find)found;
    return (Call)device_call;
}
"""


@dataclass(frozen=True)
class Code:
    """Figures of a shader compiled for one family."""

    instructions: float
    loads: int
    registers: int
    waves: int
    spills: int
    whole: int


def keep_spirv(folder: Path, options: argparse.Namespace) -> None:
    """Write the SPIR-V of a product of some rows in each format; runs in a child with the library before the loader."""
    import wgpu

    from rung.kernels.isa.products import packs_signed_bytes
    from rung.kernels.webgpu.gpu import Gpu
    from rung.kernels.webgpu.info import SHARED_ROWS
    from rung.kernels.webgpu.int8.tiles import Tile
    from rung.kernels.webgpu.layouts import UNIT
    from rung.kernels.webgpu.linear import Product, Segment
    from rung.kernels.webgpu.packing import pack
    from rung.ops import proof

    found = [each for each in wgpu.gpu.enumerate_adapters_sync() if each.info["backend_type"] == "Vulkan"]
    device, kept, rows = Gpu(found[0]), dict[str, Path](), min(options.rows, SHARED_ROWS)
    blocks = options.rows // rows
    summed = {"gain": COLUMNS, "post": 0, "keeps": True} if options.summed else {}
    for name in options.formats.split(","):
        layout, _ = pack(proof.weights(name, 16, proof.columns_of(name)), packs_signed_bytes())
        segments = (Segment(layout, COLUMNS),)
        product = Product(segments, COLUMNS, rows, 0, blocks=blocks)
        if options.int8:
            product = Tile(segments, COLUMNS, rows, 2 * COLUMNS, units=not options.summed, blocks=blocks, **summed)
        kernel = product.kernel()
        path = folder / f"{name.replace(':', '_')}.spv"
        path.with_suffix(".weights").write_text(str(UNIT * product.most))
        if kernel.code in kept:  # formats of one layout share a shader
            shutil.copy(kept[kernel.code], path)
            continue
        kept[kernel.code] = path
        os.environ["KEEP_SPIRV"] = str(path)
        device.bind(kernel, [device.buffer(size) for size in kernel.reaches], *product.grid)
        os.environ.pop("KEEP_SPIRV")


def compile_spirv(path: Path, bindings: int = 10) -> None:
    """Make a pipeline of a shader on RADV, whose debugging output is its machine code; runs in a child."""
    import vulkan as vk

    instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(), None)
    physical = vk.vkEnumeratePhysicalDevices(instance)[0]
    queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, queueCount=1, pQueuePriorities=[1.0])
    device = vk.vkCreateDevice(physical, vk.VkDeviceCreateInfo(pQueueCreateInfos=[queue]), None)
    kind, stage = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, vk.VK_SHADER_STAGE_COMPUTE_BIT
    slots = [
        vk.VkDescriptorSetLayoutBinding(binding=number, descriptorType=kind, descriptorCount=1, stageFlags=stage)
        for number in range(bindings)
    ]
    sets = vk.vkCreateDescriptorSetLayout(device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=slots), None)
    layout = vk.vkCreatePipelineLayout(device, vk.VkPipelineLayoutCreateInfo(pSetLayouts=[sets]), None)
    code = path.read_bytes()
    module = vk.vkCreateShaderModule(device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None)
    stage_info = vk.VkPipelineShaderStageCreateInfo(stage=stage, module=module, pName="main")
    vk.vkCreateComputePipelines(device, None, 1, vk.VkComputePipelineCreateInfo(stage=stage_info, layout=layout), None)


def code_of(said: str, weights: int) -> Code:
    """Read what RADV says of a shader: the longest loop with loads of its machine code, in a pass of which a thread
    multiplies so many weights, and its statistics."""
    lines = said[said.rindex("disasm:") :].splitlines()
    labels, longest = {}, range(0)
    for number, line in enumerate(lines):
        if label := re.match(r"(BB\d+):", line):
            labels[label[1]] = number
        elif (back := re.match(r"\ts_c?branch\S* (BB\d+)", line)) and back[1] in labels:
            found = range(labels[back[1]], number + 1)
            if any(re.match(LOAD, lines[at]) for at in found):
                longest = max(longest, found, key=len)
    loop = [lines[number] for number in longest if lines[number].startswith("\t")]
    under_way, most = 0, 0
    for line in loop:
        under_way += bool(re.match(LOAD, line))
        most = max(most, under_way)
        if wait := re.search(r"vmcnt\((\d+)\)", line):
            under_way = min(under_way, int(wait[1]))
    numbers = {name: int(re.findall(rf"^{name}: (\d+)", said, re.MULTILINE)[-1]) for name in
               ("VGPRs", "Subgroups per SIMD", "Spilled SGPRs", "Spilled VGPRs", "Scratch size")}  # fmt: skip
    spills = numbers["Spilled SGPRs"] + numbers["Spilled VGPRs"] + numbers["Scratch size"]
    whole = sum(line.startswith("\t") for line in lines)
    return Code(len(loop) / weights, most, numbers["VGPRs"], numbers["Subgroups per SIMD"], spills, whole)


def driver(name: str) -> str:
    """Return the description of one of Mesa's drivers. Ends the script where it is not there."""
    found = sorted(Path("/usr/share/vulkan/icd.d").glob(f"{name}*.json"))
    if not found:
        sys.exit(f"Mesa's {name} is not here: apt install mesa-vulkan-drivers")
    return str(found[0])


def counted(
    formats: list[str], families: list[str], folder: Path, arguments: argparse.Namespace
) -> dict[tuple[str, str], Code]:
    """Return the code of each format on each family."""
    loader = next(iter(sorted(Path("/usr/lib").glob("*/libvulkan.so.1"))), None)
    compiler = shutil.which("cc")
    if loader is None or compiler is None:
        sys.exit("needs a C compiler and the Vulkan loader: apt install gcc libvulkan1")
    (folder / "keep.c").write_text(KEEP)
    library = folder / "libvulkan.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "keep.c", "-ldl"], check=True)
    again = [sys.executable, __file__, "--rows", str(arguments.rows), *(["--int8"] if arguments.int8 else [])]
    again += ["--summed"] if arguments.summed else []
    keeping = {"LD_LIBRARY_PATH": str(folder), "VULKAN_LOADER": str(loader), "VK_ICD_FILENAMES": driver("lvp_icd")}
    subprocess.run([*again, "--keep", folder, "--formats", ",".join(formats)], env=os.environ | keeping, check=True)
    found = {}
    for family in families:
        options = {"RADV_FORCE_FAMILY": family, "RADV_DEBUG": "shaders,shaderstats,nocache"}
        radv = os.environ | options | {"VK_ICD_FILENAMES": driver("radeon_icd")}
        for name in formats:
            path = folder / f"{name.replace(':', '_')}.spv"
            done = subprocess.run([*again, "--compile", path], env=radv, check=True, capture_output=True, text=True)
            found[name, family] = code_of(done.stderr, int(path.with_suffix(".weights").read_text()))
    return found


def main() -> None:
    """Count, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--families")
    parser.add_argument("--write", action="store_true", help="write the table that plans read")
    parser.add_argument("--int8", action="store_true", help="activations as signed bytes (webgpu.int8)")
    parser.add_argument("--rows", type=int, default=1, help="rows of activations; more than one are only printed")
    parser.add_argument("--summed", action="store_true", help="with --int8: behind a norm; only printed")
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--compile", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    formats = options.formats.split(",")
    families = options.families.split(",") if options.families else [*(DOTS if options.int8 else FAMILIES)]
    if options.keep or options.compile:
        return keep_spirv(options.keep, options) if options.keep else compile_spirv(options.compile)
    with tempfile.TemporaryDirectory() as folder:
        found = counted(formats, families, Path(folder), options)
    print("instructions a weight, loads under way, registers, waves a SIMD, spills, all instructions of", *families)
    missed = compared(found, formats, families, options)
    sys.exit("\n".join(dict.fromkeys(missed)) if missed and options.rows == 1 else 0)


def compared(
    found: dict[tuple[str, str], Code], formats: list[str], families: list[str], options: argparse.Namespace
) -> list[str]:
    """Print what was counted, and write the table or compare it; return the bars that were missed."""
    missed = []
    for name in formats:
        codes = {family: found[name, family] for family in families}
        cells = [
            f"{c.instructions:5.2f} {c.loads:2} {c.registers:3} {c.waves:2} {c.spills} {c.whole:4}"
            for c in codes.values()
        ]
        print(f"{name:8}", *cells, sep=" | ", flush=True)
        most = max(code.instructions for code in codes.values())
        missed += [f"{name} spills" for code in codes.values() if code.spills]
        if name in BARRED and (most > MOST[options.int8] or min(code.loads for code in codes.values()) < LOADS):
            missed.append(f"{name} is beyond its bar")
        if not (options.write or options.summed) and abs(instructions.of(name, options.int8) - most) > 0.01:
            missed.append(f"{name}: the table has {instructions.of(name, options.int8)}, counted {most:.2f}")
    if options.write and options.rows == 1:
        rows = {name: max(found[name, family].instructions for family in families) for name in formats}
        instructions.write(rows, options.int8)
    return missed


if __name__ == "__main__":
    main()
