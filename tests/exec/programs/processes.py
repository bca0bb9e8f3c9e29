"""A program of many processes and threads, each of which computes on the GPU."""

import multiprocessing
import subprocess
import sys
import threading

import torch


def product(queue=None):
    x = torch.ones(2, 2, device="cuda", dtype=torch.bfloat16)
    found = f"{(x @ x).dtype} {torch.cuda.get_device_name()}"
    if queue is not None:
        queue.put(found)
    return found


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((2,), float(index))


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print("here", product())
    thread = threading.Thread(target=lambda: print("thread", product()))
    thread.start()
    thread.join()
    batches = torch.utils.data.DataLoader(Numbers(), num_workers=2, batch_size=2, pin_memory=True)
    print("workers", *[batch.cuda().sum().item() for batch in batches])
    spawning = multiprocessing.get_context("spawn")
    queue = spawning.Queue()
    process = spawning.Process(target=product, args=(queue,))
    process.start()
    print("spawned", queue.get())
    process.join()
    code = "import torch; print(torch.cuda.is_available())"
    print("another", python("-c", code), "isolated", python("-I", "-c", code))
