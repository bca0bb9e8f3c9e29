"""Hold what a format costs in quality, in words: the only place that knows them.

The ranges are those of the floors of ``formats.table``: 8 and 6 bits, 5 bits, 4 bits, 3 bits, fewer.
"""

from __future__ import annotations

import math

#: The least SQNR in dB of a grade.
_GRADES = ((34.5, "hard to tell"), (25.0, "slight"), (18.0, "noticeable"), (13.5, "clear loss"))


def grade(error_db: float) -> str:
    """Return the quality of weights with that SQNR against the stored ones.

    >>> grade(math.inf), grade(45.0), grade(28.5), grade(22.5), grade(16.8), grade(10.1)
    ('as stored', 'hard to tell', 'slight', 'noticeable', 'clear loss', 'poor')
    """
    if math.isinf(error_db):
        return "as stored"
    return next((words for least, words in _GRADES if error_db >= least), "poor")
