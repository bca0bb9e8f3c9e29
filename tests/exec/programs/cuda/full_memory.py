"""A program that halves its batch until it fits, as many do, with a limit of memory that it sets itself."""

import resource

import torch

model = torch.nn.Linear(256, 65536).to("cuda")
(model(torch.ones(2, 256, device="cuda")).sum() * 1.0).backward()  # threads and libraries have what they need
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), used + (400 << 20)))


def tried(what, step):
    try:
        step()
    except torch.cuda.OutOfMemoryError as error:
        print(what, "out of memory" in str(error))
        torch.cuda.empty_cache()
    else:
        print(what, "fits")


tried("a tensor", lambda: torch.zeros(1 << 28, device="cuda"))
tried("the forward pass", lambda: model(torch.ones(4096, 256, device="cuda")))
batch = 4096
while batch:
    try:
        model(torch.ones(batch, 256, device="cuda")).sum().backward()
        break
    except torch.OutOfMemoryError:
        batch //= 2
print("a batch", 0 < batch < 4096)
tried("far too much", lambda: torch.empty(1 << 50, device="cuda"))
