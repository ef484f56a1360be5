"""Servers that archive with Tidemark's archive_command, and forged segments."""

import atexit
import functools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes.waiting import wait_until
from tests.support.servers.forked_archiving import forked_archive_program
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.io.archive.spool import Spool

LONG_HEADER = struct.Struct("<HHIQI4xQII")
LONG_HEADER_BYTES = LONG_HEADER.size
ARCHIVED_S = 120
_MAGIC_15 = 0xD110
_MODULE = ("-m", "tidemark_archiver.archive_command")
_PYTHON = "/usr/bin/python3"  # a Python that the server's user may run; it needs the standard library only


def segment_bytes(system_identifier: int, size: int = 1 << 20) -> bytes:
    """Return a segment with its long header and random bytes."""
    header = LONG_HEADER.pack(_MAGIC_15, 2, 1, size, 0, system_identifier, size, 8192)
    return header + os.urandom(size - len(header))


class ArchivingServer:
    """A server with segments of 1 MB and Tidemark's archive_command."""

    def __init__(self, node: Cluster, spool: Spool) -> None:
        self.node = node
        self.spool = spool

    def switch(self, count: int = 1) -> list[str]:
        """Complete this number of segments; return their names."""
        names = []
        for _ in range(count):
            self.node.sql("SELECT pg_logical_emit_message(false, 'archiving', '')")
            (row,) = self.node.sql("SELECT pg_walfile_name(pg_switch_wal())")
            names.append(str(row[0]))
        return names

    def waiting(self) -> list[str]:
        """Return the segments that the server keeps because they are not archived."""
        return sorted(path.stem for path in (self.node.data / "pg_wal" / "archive_status").glob("*.ready"))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; fail with the server's log."""
        wait_until(condition, within_s=ARCHIVED_S, reported=lambda: self.node.log[-3000:])

    def wait_until_archived(self) -> None:
        """Wait until the server has no unarchived WAL."""
        self.wait_for(lambda: not self.waiting())


@functools.cache
def archive_packages() -> Path:
    """Return the folder of a copy of the archive command: the server's user cannot read the original.

    The copy is compiled, as an installed package is: a segment costs half the CPU time then.
    """
    program = Path(tempfile.mkdtemp(prefix="tm-program-"))
    atexit.register(shutil.rmtree, program, ignore_errors=True)
    program.chmod(0o755)
    for package in (Path("archiver/tidemark_archiver"), Path("tidemark")):
        shutil.copytree(package, program / package.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    command, environment = [_PYTHON, "-S", *_MODULE, "--help"], {"PYTHONPATH": str(program)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)  # compiles what it imports
    return program


def archive_program() -> str:
    """Return the command line of the copy."""
    return f"PYTHONPATH={archive_packages()} {_PYTHON} -S -B {' '.join(_MODULE)}"


@functools.cache
def archive_script() -> Path:
    """Return that command line as a file that the server's user can execute."""
    script = Path(tempfile.mkdtemp(prefix="tm-script-")) / "cdcctl-archive"
    atexit.register(shutil.rmtree, script.parent, ignore_errors=True)
    script.parent.chmod(0o755)
    script.write_text(f'#!/bin/sh\nexec env {archive_program()} "$@"\n')
    script.chmod(0o755)
    return script


def chown(folder: Path, node: Cluster) -> None:
    """Change a folder's owner to the server's user."""
    owner = node.folder.stat()
    subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", str(folder)], check=True)


@contextmanager
def archiving(
    root: Path, *, major: int = 15, settings: Mapping[str, str | int] | None = None, **options: float
) -> Iterator[ArchivingServer]:
    """Start a server that archives into a spool at `root`/spool, created here and owned by the server's user.

    `options` are those of the archive command.
    """
    spool = Spool(root / "spool")
    with new_cluster(major, {"archive_mode": "on", **(settings or {})}, initdb=["--wal-segsize=1"]) as node:
        (row,) = node.sql("SELECT system_identifier FROM pg_control_system()")
        spool.create(int(str(row[0])))
        chown(spool.folder, node)
        root.chmod(0o755)
        given = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
        program = forked_archive_program(archive_packages(), _PYTHON, node.folder) or archive_program()
        node.configure(archive_command=f"{program} --spool {spool.folder} {given} %p %f")
        yield ArchivingServer(node, spool)
