"""The conditions, other than its arguments, that affect the numbers of a benchmark."""

import os
import platform

from tidemark.wal.kernel import COMPILED


def machine() -> dict[str, object]:
    """Return the conditions reported with each result; read before the benchmark loads the machine."""
    return {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "kernels": "compiled" if COMPILED else "interpreted",
        "load": [round(load, 1) for load in os.getloadavg()],
    }
