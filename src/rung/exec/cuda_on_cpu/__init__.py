"""``rung exec --device cpu``: a program written for CUDA runs on the processor.

``torch.cuda`` has one device, the processor, without a card's limits. Tensors of the card are ordinary ones that
compute at full speed; those of the host bear a mark (``rung.simulation.dispatch.dispatch_hook``).

- ``enter``: what is put in force, for the life of the process.
- ``machine``: the processor as a card, what ``torch.cuda`` answers of it, and what a full memory raises.
- ``operations``: results of the host's tensors lie on the host; products of 16 bits; ``torch.autocast``.
- ``tensors``: constructors of old, storages, files: what torch makes without being told a device.
- ``libraries``: NCCL, Triton, the compiler and optimizers: what is for GPUs alone.
"""
