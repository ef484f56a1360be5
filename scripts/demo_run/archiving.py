"""The server's archive_command: a program that the server's user can run, and the line that `cdcctl init` prints."""

import re
import shlex
import shutil
import sys
from pathlib import Path

from scripts.demo_run.server import DemoServer

PROGRAM = "cdcctl-archive"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
SOURCES = Path(__file__).parents[2]
LEAN = ("archiver/tidemark_archiver", "tidemark")  # all imports of the program, apart from the standard library
_LINE = re.compile(r"^archive_command = '.*'$", re.MULTILINE)


def archive_program(server: DemoServer, folder: Path) -> str:
    """Return the program for `archive.program`; empty: the server's user can run the one next to `cdcctl`.

    For root, the server runs as another user, who may not be able to read our .venv: then a copy of the program is
    created in `folder`, with a Python of the system. It needs only the standard library.
    """
    beside = shutil.which(PROGRAM, path=str(Path(sys.executable).parent))
    if beside is not None and server.may_run(beside, "--help"):
        return ""
    return _copied(server, folder)


def archive_line(reported: str) -> str:
    """Return the line for postgresql.conf from the output of `cdcctl init`."""
    found = _LINE.search(reported)
    if found is None:
        raise SystemExit(f"cdcctl init printed no archive_command:\n{reported}")
    return found.group(0)


def _copied(server: DemoServer, folder: Path) -> str:
    for package in LEAN:
        source = SOURCES / package
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # independent of the clone's umask
    script = folder / PROGRAM
    pythons = (str(Path(sys.executable).resolve()), shutil.which("python3", path=SYSTEM_PATH))
    for python in filter(None, pythons):
        words = ("/usr/bin/env", f"PYTHONPATH={folder}", python, "-S", "-B", "-m", "tidemark_archiver.archive_command")
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        script.chmod(0o755)
        if server.may_run(str(script), "--help"):
            return str(script)
    raise SystemExit(
        f"the server's user {server.os_user} can run neither {PROGRAM} nor a Python 3.11 of the system, and could not "
        "archive: run scripts/demo as another user than root"
    )
