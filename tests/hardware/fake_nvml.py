# ruff: noqa: N802
"""Answers of NVIDIA's management library, as pynvml gives them: recorded shapes and types, chosen cards."""

from types import SimpleNamespace

GB = 2**30


class Nvml:
    """Stands in for the module ``pynvml``; ``refuses`` is the message of an error at initialization."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus, driver="580.95.05", cuda=13000, refuses=""):
        self.gpus, self.driver, self.cuda, self.refuses = gpus, driver, cuda, refuses
        self.open = 0

    def nvmlInit(self):
        if self.refuses:
            raise self.NVMLError(self.refuses)
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):
        return self.driver

    def nvmlSystemGetCudaDriverVersion(self):
        return self.cuda

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.gpus[index] is LOST:
            raise self.NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetPciInfo(self, gpu):
        if gpu["pci"] is None:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(domain=0, bus=gpu["bus"], device=0, pciDeviceId=gpu["pci"] << 16 | 0x10DE)

    def nvmlDeviceGetCudaComputeCapability(self, gpu):
        return gpu["cc"]

    def nvmlDeviceGetUUID(self, gpu):
        return gpu["uuid"]

    def nvmlDeviceGetName(self, gpu):
        return gpu["name"]

    def nvmlDeviceGetMemoryInfo(self, gpu):
        if gpu["memory"] is None:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(total=gpu["memory"], free=gpu["memory"] - GB // 2, used=GB // 2)


def gpu(name, cc, pci, memory, bus=1, uuid="GPU-0a1b2c3d-1111-2222-3333-444455556666"):
    return {"name": name, "cc": cc, "pci": pci, "memory": memory, "bus": bus, "uuid": uuid}


P2200 = gpu("Quadro P2200", (6, 1), 0x1C31, 5059 << 20)
RTX_3060 = gpu("NVIDIA GeForce RTX 3060", (8, 6), 0x2503, 12288 << 20, bus=0x41, uuid="GPU-ffff0000-0000")
GTX_1650 = gpu("NVIDIA GeForce GTX 1650", (7, 5), 0x1F82, 4096 << 20)
H200 = gpu("NVIDIA H200", (9, 0), 0x2335, 143771 << 20)
GB10 = gpu("NVIDIA GB10", (12, 1), 0x2E12, None)
UNKNOWN = gpu("NVIDIA Thing 9000", (8, 9), 0xFFF0, 30 * GB)
UNKNOWN_ARCH = gpu("NVIDIA Thing 9999", (99, 0), 0xFFF1, 30 * GB)
ORIN = gpu("Jetson AGX Orin", (8, 7), None, None)
LOST = gpu("never told", (0, 0), 0, 0)
