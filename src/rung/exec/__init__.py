"""``rung exec``: another program, helped without touching it.

- ``launch``   starts the program, passes its streams and signals, and returns how it ended; ``relay``: its stderr
- ``start``    a folder for PYTHONPATH whose ``sitecustomize`` waits for ``import torch`` in every Python of the program
- ``hook``     what happens then: a card is simulated, and operations are watched (``watch``)
- ``steps``    a refused operation is repeated one rung lower and remembered; ``lower``: those rungs; ``split``: by rows
- ``notes``    what was done, from the program's processes to the launcher
- ``repairs``  environment variables that help any program

``launch`` and ``notes`` import neither torch nor typer: a program that never uses torch pays for Python's start alone.
"""
