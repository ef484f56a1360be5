"""Data directories as initdb creates them, copied: initdb costs 0.6 s of a CPU, a copy 0.05 s.

Each copy gets a system identifier of its own, as each initdb gives one: in pg_control, and in each segment's header.
"""

import functools
import secrets
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import google_crc32c

from tests.support.servers.servers import ServerPrograms, cache_folder, locked
from tidemark.wal.data_directory import directory_format

Initdb = Callable[[Path, Sequence[str]], None]  # runs it as the servers' user: data directory, further options

_IDENTIFIER = struct.Struct("<Q")
_IDENTIFIER_IN_HEADER = 24  # xlp_sysid of XLogLongPageHeaderData, behind the 20 bytes of the short header, aligned
_CRC = struct.Struct("<I")


def copy_initialised(programs: ServerPrograms, options: Sequence[str], data: Path, initdb: Initdb) -> None:
    """Create a data directory as initdb with these options does; `data` does not exist, its parent is the server's."""
    original = _original(programs, tuple(options), data, initdb)
    subprocess.run(["cp", "-a", str(original), str(data)], check=True)
    _identify(programs.major, data)


def _original(programs: ServerPrograms, options: tuple[str, ...], data: Path, initdb: Initdb) -> Path:
    """Return the data directory that is copied; the first call for a server and options runs initdb."""
    cache = cache_folder() / "initialised"
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / "".join((_version(programs.program("initdb")), f"-{data.parent.stat().st_uid}", *options))
    with locked(kept.with_name(f"{kept.name}.lock")):
        if not kept.exists():
            made = data.with_name("initialised")
            initdb(made, options)
            unfinished = kept.with_name(f"{kept.name}.partial")
            subprocess.run(["rm", "-rf", str(unfinished)], check=True)
            subprocess.run(["mv", str(made), str(unfinished)], check=True)
            unfinished.rename(kept)
    return kept


@functools.cache
def _version(initdb: Path) -> str:
    """Return what an initdb says of its build, as a part of a file's name."""
    printed = subprocess.run([str(initdb), "--version"], capture_output=True, text=True, check=True).stdout
    return "".join(letter if letter.isalnum() or letter in ".+-" else "_" for letter in printed.strip())


def _identify(major: int, data: Path) -> None:
    """Give a data directory another system identifier."""
    identifier = _IDENTIFIER.pack(secrets.randbits(62))
    crc_at = directory_format(major).control_crc_at
    with (data / "global" / "pg_control").open("r+b") as control:
        content = identifier + control.read(crc_at)[_IDENTIFIER.size :]
        control.seek(0)
        control.write(content + _CRC.pack(google_crc32c.value(content)))
    for segment in (path for path in (data / "pg_wal").iterdir() if path.is_file()):
        with segment.open("r+b") as wal:
            wal.seek(_IDENTIFIER_IN_HEADER)
            wal.write(identifier)
