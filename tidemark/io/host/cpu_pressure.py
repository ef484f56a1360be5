"""How long tasks of the host waited for a CPU: pressure stall information of Linux 4.20 and later."""

from pathlib import Path

from tidemark.model.commit_time import USECS_PER_SECOND

PRESSURE = Path("/proc/pressure/cpu")
_SOME, _TOTAL = "some", "total="


def cpu_waited_s(path: Path = PRESSURE) -> float | None:
    """Return for how long at least one task has waited since the boot, in seconds; None if the kernel counts nothing.

    It is the host's, in a container as well.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        kind, *fields = line.split() or [""]
        total = fields[-1] if fields else ""
        if kind == _SOME and total.startswith(_TOTAL) and total[len(_TOTAL) :].isdigit():
            return int(total[len(_TOTAL) :]) / USECS_PER_SECOND
    return None
