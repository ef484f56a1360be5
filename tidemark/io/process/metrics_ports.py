"""The ports of a state's metrics: assigned by `cdcctl init`, so that the captures of one host do not collide.

STATE/ports.json has the assigned ports. Each state gets three consecutive ports, the first three that are free from
9748 on. A port is not free if a process listens on it, if a neighbouring state has it, or if it is claimed in the
host's registry: a folder with one file for each claim, named by the claim's first port, with the path of its state. A
claim is void once its state folder is removed. A state without the file (of an older version) uses the configuration's.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Self

from tidemark.io.host.disk import writing
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.model.mode import Role

FIRST_PORT = 9748
STATES_MAX = 1000  # on one host: ports up to 12,747
REGISTRY = Path("/var/tmp/tidemark-ports")  # noqa: S108 - sticky, and claims are only ever created (O_EXCL)
REGISTRY_VARIABLE = "TIDEMARK_PORTS_FOLDER"
REGISTRY_MODE = 0o1777
_CLAIM_BYTES_MAX = 4096


class DamagedPorts(ConfigError):
    """A damaged file of assigned ports."""

    hint = "remove the file: the ports of the configuration then apply"


@dataclass(frozen=True, slots=True)
class MetricsPorts:
    """One port for each process."""

    sidecar: int
    archiver: int
    pipeline: int

    @classmethod
    def starting_at(cls, first: int) -> Self:
        """Return three consecutive ports."""
        return cls(first, first + 1, first + 2)

    def defaults(self) -> dict[str, dict[str, object]]:
        """Return the default ports of the configuration."""
        return {"metrics": {"port": self.sidecar, "archiver_port": self.archiver}}


def assigned_ports(folder: StateFolder) -> MetricsPorts | None:
    """Return the ports that were assigned to a state; None if there are none."""
    try:
        stored = json.loads(folder.ports.read_text(encoding="utf-8"))
        ports = MetricsPorts(stored["sidecar"], stored["archiver"], stored["pipeline"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DamagedPorts(f"cannot read {folder.ports}: {error.strerror}", hint="check its permissions") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedPorts(f"{folder.ports} contains no ports") from error
    if not all(isinstance(port, int) for port in astuple(ports)):
        raise DamagedPorts(f"{folder.ports} contains no ports")
    return ports


def assign_ports(folder: StateFolder) -> MetricsPorts | None:
    """Assign ports to a state before its first start; None: a process has run without them, or no ports are free."""
    ports = assigned_ports(folder)
    registry = Path(os.environ.get(REGISTRY_VARIABLE) or REGISTRY)
    if ports is not None:
        _claim(registry, ports, folder)
        return ports
    if any(folder.lock(role.value).exists() for role in Role):
        return None
    used = set(_ports_of_neighbours(folder))
    for number in range(STATES_MAX):
        ports = MetricsPorts.starting_at(FIRST_PORT + number * 3)
        wanted = set(astuple(ports))
        if wanted & used or not all(map(_is_free, wanted)) or not _claim(registry, ports, folder):
            continue
        _write(folder, ports)
        return ports
    return None


def _write(folder: StateFolder, ports: MetricsPorts) -> None:
    temporary = folder.ports.with_suffix(".new")
    with writing(folder.ports):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, folder.file_mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(ports), file)
        temporary.rename(folder.ports)


def _ports_of_neighbours(folder: StateFolder) -> Iterator[int]:
    """Yield the ports of the states in the same parent folder."""
    with suppress(OSError):
        for beside in sorted(folder.root.absolute().parent.iterdir()):
            with suppress(DamagedPorts):
                ports = assigned_ports(StateFolder(beside))
                yield from astuple(ports) if ports is not None else ()


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _claim(registry: Path, ports: MetricsPorts, folder: StateFolder) -> bool:
    """Claim ports for a state; False: another state has them. An unusable registry counts as empty."""
    own, path = str(folder.root.absolute()), registry / str(ports.sidecar)
    try:
        if not registry.exists():
            registry.mkdir(exist_ok=True)
            registry.chmod(REGISTRY_MODE)
        holder = _holder(path)
        if holder == own:
            return True
        if holder is not None and not _is_void(holder):
            return False
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(own)
    except FileExistsError:
        return False  # another `init` was first
    except OSError:
        return _holder_is_unknown(path)
    return True


def _holder_is_unknown(path: Path) -> bool:
    """Return whether the holder of a failed claim is unknown: then listeners and neighbours alone decide."""
    return not path.exists()


def _holder(path: Path) -> str | None:
    """Return the state folder of a claim; None if there is none. An empty claim is being written, and valid."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, _CLAIM_BYTES_MAX).decode(errors="replace") or "/"
    finally:
        os.close(descriptor)


def _is_void(holder: str) -> bool:
    """Return whether the state folder of a claim is gone; False if it cannot be accessed."""
    try:
        Path(holder).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
