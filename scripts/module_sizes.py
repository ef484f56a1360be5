"""Fails if a module exceeds 600 lines, or if the ninth decile of all modules exceeds 400.

A module over the limit needs an entry in ALLOWED with the reason.
"""

import statistics
import sys
from pathlib import Path

LINES_MAX = 600
NINTH_DECILE_MAX = 400
ALLOWED: dict[str, str] = {}
ROOTS = ("tidemark", "sidecar", "archiver", "ctl", "pyspark_tidemark", "scripts", "tests")


def main() -> int:
    """Print a summary of the sizes; return 1 if a limit is exceeded."""
    sizes = {
        str(path): len(path.read_text().splitlines())
        for root in ROOTS
        for path in Path(root).rglob("*.py")
        if path.name != "__init__.py"
    }
    broken = [f"{path}: {lines} lines, over {LINES_MAX}" for path, lines in sizes.items() if lines > LINES_MAX]
    broken = [line for line in broken if line.partition(":")[0] not in ALLOWED]
    ninth = statistics.quantiles(sizes.values(), n=10)[-1]
    if ninth > NINTH_DECILE_MAX:
        broken.append(f"ninth decile is {ninth:.0f} lines, over {NINTH_DECILE_MAX}")
    print(f"{len(sizes)} modules, median {statistics.median(sizes.values()):.0f} lines, ninth decile {ninth:.0f}")
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
