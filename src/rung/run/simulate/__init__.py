"""Simulated devices: inside ``rung.simulate(NAME)`` torch code sees that card on a machine without it.

How it is done, a file each:

- ``context``     the ``with`` block: everything is put in force, and put back
- ``world``       what one simulation knows: the card, its memory, its defects
- ``placement``   which tensors lie on the card: a mark on their storage, which is ordinary memory of the CPU
- ``tensors``     what a tensor says of its device and how it moves; ``factories``: new tensors; ``generators``: chance
- ``dispatch``    every operation: devices that mix, refusals, memory; ``refusals`` has the words of the real software
- ``allocator``   the card's memory, as torch's caching allocator divides it
- ``queries``     ``torch.cuda`` and its sisters; ``streams``, ``autocast``, ``serialization``: what their names say
- ``threads``     in force in threads and pools

Values are computed on the CPU in the same dtype, so they are exact; times mean nothing.
"""
