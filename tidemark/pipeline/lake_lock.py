"""One pipeline a lake: a lock in the lake's folder that names its holder.

`_positions` says whose tables a lake has, but a capture whose state was lost is continued by another state under the
same name. The lock refuses the case that is no such successor: a second pipeline beside one that runs. The kernel
releases it when the holder dies. Where the file system does not share locks between hosts, a second pipeline is found
by its first commit (`tidemark.pipeline.lake.TableFenced`).
"""

import fcntl
import json
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.io.clock import host_name
from tidemark.io.disk import writing
from tidemark.pipeline.positions import LakeTaken
from tidemark.wire.state import Identity

FILE = "_pipeline.lock"
_FILE_MODE = 0o600
_TEXT_BYTES_MAX = 4096
_FLOCK = struct.Struct("hhqqi0q")  # struct flock of fcntl(2)
_WHOLE_FILE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Holder:
    """Which pipeline holds a lake."""

    capture: str
    system_identifier: str
    state: str
    reader: str
    host: str
    pid: int

    def __str__(self) -> str:
        return (
            f"the pipeline {self.reader!r} of capture {self.capture!r} of the cluster {self.system_identifier} "
            f"(state {self.state}, process {self.pid} on {self.host})"
        )


class LakeInUse(LakeTaken):
    """A lake that another pipeline writes to."""

    hint = "give each capture a lake of its own and a name of its own (capture.name), or stop the other pipeline first"


class LakeLock:
    """The lock of one lake, held until it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, lake: Path, identity: Identity, state: Path, reader: str) -> Self:
        """Take the lock of `lake`, whose folder is made if it is not there; raise `LakeInUse` where it is held."""
        own = Holder(
            identity.capture, str(identity.system_identifier), str(state.absolute()), reader, host_name(), os.getpid()
        )
        path = lake / FILE
        with writing(path):
            lake.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            try:
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
            except BlockingIOError:
                raise LakeInUse(f"{lake} is written by {_holder(descriptor)}; this is {own}") from None
            with writing(path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(asdict(own)).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._descriptor)


def _holder(descriptor: int) -> str:
    """Return who holds the lock; the text is missing for the moment between taking the lock and writing it."""
    try:
        return str(Holder(**json.loads(os.pread(descriptor, _TEXT_BYTES_MAX, 0))))
    except (ValueError, TypeError):
        return "another pipeline, which starts at this moment"
