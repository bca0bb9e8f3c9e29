"""``rung exec``: another program, helped without touching it.

- ``launch``: start the program, pass its streams and signals on, and return how it ended; ``relay``: its stderr.
- ``start``: a folder for PYTHONPATH whose ``sitecustomize`` waits for ``import torch`` in every Python of the program.
- ``hook``: what happens then: a card is simulated, and operations are watched.
- ``step_down``: repeat a refused operation one rung lower and remember it; ``fallbacks``: those rungs.
- ``report``: what was done, from the program's processes to the launcher.
- ``repairs``: environment variables that help any program.

``launch`` and ``report`` import neither torch nor typer: a program that never uses torch pays for Python's start alone.
"""
