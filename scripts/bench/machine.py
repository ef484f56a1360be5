"""What the numbers of a benchmark depend on beside its arguments."""

import os
import platform

from tidemark.wal.kernel import COMPILED


def machine() -> dict[str, object]:
    """Return what is told with every result; taken before the benchmark loads the machine."""
    return {
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "kernels": "compiled" if COMPILED else "interpreted",
        "load": [round(load, 1) for load in os.getloadavg()],
    }
