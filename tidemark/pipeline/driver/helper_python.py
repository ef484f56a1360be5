"""The Python of Spark's helper processes on this host: the running one, with PySpark from its own installation.

Spark starts three of them one after the other before the first batch, each with PySpark's zip file first in PYTHONPATH.
Python keeps no byte code for a zip file and compiles PySpark again in each process, which takes 0.5 s of CPU. A script
that sets PYTHONPATH without the zip file therefore starts the interpreter.
"""

import os
import shlex
import sys
from pathlib import Path

_SCRIPT = """#!/bin/sh
PYTHONPATH={path}
export PYTHONPATH
exec {python} "$@"
"""


def helper_python(python_path: str, cache: Path) -> str:
    """Return the program for helpers with this PYTHONPATH, written to `cache`; if none can run there, this Python."""
    script = cache / "spark-python"
    written = script.with_name(f"{script.name}.{os.getpid()}")
    written.write_text(_SCRIPT.format(path=shlex.quote(python_path), python=shlex.quote(sys.executable)), "utf-8")
    written.chmod(0o700)
    written.rename(script)  # atomic: another pipeline may be starting
    return str(script) if os.access(script, os.X_OK) else sys.executable  # false on a file system mounted noexec
