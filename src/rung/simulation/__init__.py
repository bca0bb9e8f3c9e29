"""Simulated devices: inside ``rung.simulate(NAME)`` torch code sees that card on a machine without it.

How it is done, a file each:

- ``context``     the ``with`` block: everything is put in force, and put back
- ``world``       what one simulation knows: its cards, their memory, its defects
- ``placement``   which tensors lie on a card: a mark on their storage, which is ordinary memory of the CPU
- ``tensors``     what a tensor says of its device and how it moves; ``factories``: new tensors; ``generators``: chance
- ``dispatch``    every operation: devices that mix, refusals, memory; ``operations``: what is known of each;
                ``refusals``: the words of the real software
- ``allocator``   a card's memory, as torch's caching allocator divides it
- ``queries``     ``torch.cuda`` and its sisters; ``properties``: of one card; ``streams``, ``autocast``,
                ``serialization``: what their names say; ``peers`` for ``DataParallel``; ``compiling``
                for ``torch.compile``
- ``threads``     in force in threads and pools, in those that run already by ``states`` (Python 3.11) or ``monitoring``
- ``remembered``  what other libraries asked before is asked again

Values are computed on the CPU in the same dtype, so they are exact; times mean nothing.
"""
