"""Run checks, all or those whose names begin so, and print a line of JSON for each.

python -m tests.emulation.checks [NAME...]
python -m tests.emulation.checks --keep   # writes what x86 and torch compute, at this processor's own level
"""

from __future__ import annotations

import json
import sys
import time
import traceback

from rung.kernels.cpu import target
from tests.emulation.checks import checks


def main(prefixes: list[str]) -> None:
    """Run those checks, or all."""
    print(json.dumps({"level": target.level().name, "features": sorted(target.features())}), flush=True)
    for name, check in checks():
        if prefixes and not any(name.startswith(each) for each in prefixes):
            continue
        begun = time.process_time()
        try:
            wrong = check()
        except Exception:  # one that cannot run is wrong, and the next ones are tried
            wrong = traceback.format_exc()
        print(json.dumps({"check": name, "wrong": wrong, "seconds": round(time.process_time() - begun, 1)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--keep"]:
        from tests.emulation.checks.keeping import keep

        keep()
    else:
        main(sys.argv[1:])
