"""Simulated devices: inside ``rung.simulate(NAME)`` torch code sees that card on a machine without it.

- ``context``: the ``with`` block: everything is put in force, and put back.
- ``simulation``: what one simulation knows: its cards and their memory.
- ``queries``: what ``torch.cuda`` and its sisters answer.
- ``refusals``: the words of the real software where a card cannot; ``defects``: those that are planted.
- ``allocator``: a card's memory, as torch's caching allocator divides it.
- ``dispatch``: every operation: devices that mix, refusals, memory; in all threads; ``torch.compile``.
- ``torch_api``: functions and classes of torch that behave as on the card. ``placement`` says which tensors lie there:
  a mark on their storage, which is ordinary memory of the CPU.

Values are computed on the CPU in the same dtype, so they are exact; times mean nothing.
"""
