"""Learn ``words.table`` and ``fixes.table`` again: ``python -m rung.diagnosis.learning``.

They are made from ``tests/data/explain*.jsonl`` and the signatures' examples and from nothing else. The same rows give
the same bytes on every processor, with any number of threads: see ``logistic.py``. ``--check`` compares and writes
nothing. Learning needs Numba; explaining does not.
"""
