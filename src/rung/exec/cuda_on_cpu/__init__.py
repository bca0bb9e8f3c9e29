"""``rung exec --device cpu``: a program written for CUDA runs on the processor.

``torch.cuda`` has one device, the processor, without a card's limits. Tensors of the card are ordinary ones that
compute at full speed; those of the host bear a mark (``rung.simulation.dispatch.dispatch_hook``).

- ``enter``      what is put in force, for the life of the process
- ``machine``    the processor as a card, and what ``torch.cuda`` answers of it; ``memory``: of this process
- ``operations`` results of the host's tensors lie on the host
- ``tensors``    constructors of old, storages, files: what torch makes without being told a device
- ``autocast``   for the card is that of the processor, in the card's dtype
- ``out_of_memory`` a full memory is what it is on a card
- ``products``   in float32 of 16-bit matrices
- ``libraries``  NCCL, Triton, the compiler and optimizers: what is for GPUs alone
"""
