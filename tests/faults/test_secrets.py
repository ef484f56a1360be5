"""A password never appears: not in logs at any level, arguments, status, errors, or a file of the state.

The same runs show that, with any umask, the content of a state folder is accessible to its owner only.
"""

import grp
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import cdcctl, refused, running, succeeded
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.model.errors import ExitCode

PASSWORD = "hunter2-in-the-clear"
HBA = (
    "local all postgres trust\nhost all postgres 127.0.0.1/32 trust\n"
    "host all cdc 127.0.0.1/32 scram-sha-256\nhost replication cdc 127.0.0.1/32 scram-sha-256\n"
)
OPEN_UMASK = 0


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with new_cluster() as made:
        made.sql("SET password_encryption = 'scram-sha-256'")
        made.sql(f"CREATE ROLE cdc LOGIN REPLICATION PASSWORD '{PASSWORD}'")
        made.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        made.sql("GRANT SELECT ON account TO cdc")
        made.hba(HBA)
        made.sql("CHECKPOINT")
        yield made


def password_file(folder: Path, mode: int = 0o600, password: str = PASSWORD) -> Path:
    path = folder / "pgpass"
    path.write_text(f"*:*:*:cdc:{password}\n")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("by", ["PGPASSFILE", "PGPASSWORD"])
def test_a_password_is_shown_nowhere_and_only_their_owner_reads_state_files(
    node: Cluster, tmp_path: Path, by: str
) -> None:
    """NB: PostgreSQL itself keeps a verifier only, so the password's text can only come from us."""
    path = password_file(tmp_path)
    dsn = node.url(user="cdc")
    secret = {by: str(path) if by == "PGPASSFILE" else PASSWORD}
    state = tmp_path / "state"
    with open_umask():
        done = succeeded(cdcctl("init", "--state", state, "--dsn", dsn, **secret))
        sidecar = Sidecar(node, "postgres", tmp_path, copy=True, TIDEMARK_CAPTURE__DSN=dsn, **secret)
        sidecar.options |= {"TIDEMARK_LOG__LEVEL": "debug", "TIDEMARK_DECODE__MEMORY_BYTES": str(1 << 20)}
        node.sql("INSERT INTO account SELECT n, repeat(md5(n::text), 40) FROM generate_series(1, 1000) n")
        try:
            sidecar.start()
            sidecar.catch_up()
            with running(tmp_path, "tail", dsn, **secret) as tail:
                tail.wait_for_err("changes follow from here on")
                said = [cdcctl("status", "--state", state, *more).out for more in ((), ("--json",))]
                shown = [cmdline(pid) for pid in (tail.process.pid, pid_of(sidecar))]
            said += [done.out, done.err.encode(), tail.err.encode(), str(sidecar.status()).encode()]
            assert_private(state)
            assert sidecar.stop() == ExitCode.SUCCESS
        finally:
            sidecar.close()
            node.sql("TRUNCATE account")
    assert_private(state)
    said += [path.read_bytes() for path in state.rglob("*") if path.is_file()]
    said += [sidecar.log_path.read_bytes()]
    assert len(said) > 10
    for text in said + shown:
        assert PASSWORD.encode() not in text


def pid_of(sidecar: Sidecar) -> int:
    assert sidecar.process is not None
    return sidecar.process.pid


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@contextmanager
def open_umask() -> Iterator[None]:
    before = os.umask(OPEN_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def assert_private(state: Path) -> None:
    """Check that only the owner can read, write or list the content of a state."""
    found = [state, *state.rglob("*")]
    assert any(path.is_socket() for path in found) or len(found) > 8
    for path in found:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path}: {mode:04o}"


def test_the_programs_of_spark_show_no_password(node: Cluster, tmp_path: Path) -> None:
    """They need none, but their environment may contain one."""
    state, lake = tmp_path / "state", tmp_path / "lake"
    path = password_file(tmp_path)
    dsn, secret = node.url(user="cdc"), {"PGPASSFILE": str(path), "PGPASSWORD": PASSWORD}
    succeeded(cdcctl("init", "--state", state, "--dsn", dsn, **secret))
    with running(tmp_path, "spark", "run", "--state", state, "--lake", lake, "--master", "local[1]", **secret) as spark:
        spark.wait_for_err("query starts")
        shown = [cmdline(pid) for pid in family(spark.process.pid)]
        assert spark.stop(signal.SIGTERM) == ExitCode.SUCCESS
    assert any(b"java" in text for text in shown)
    said = [path.read_bytes() for path in (*state.rglob("*"), *lake.rglob("*")) if path.is_file()]
    for text in [*shown, *said, spark.err.encode(), "\n".join(spark.out).encode()]:
        assert PASSWORD.encode() not in text


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(found for child in children for found in family(int(child)))]


def test_a_password_in_a_dsn_is_refused_without_being_repeated(node: Cluster, tmp_path: Path) -> None:
    state = tmp_path / "state"
    for dsn in (
        f"postgresql://cdc:{PASSWORD}@127.0.0.1:{node.port}/postgres",
        f"host=127.0.0.1 passwort={PASSWORD}",
    ):
        done = cdcctl("init", "--state", state, "--dsn", dsn)
        refused(done, ExitCode.CONFIG, "connection string")
        assert PASSWORD not in done.err
        assert not state.exists()
    done = cdcctl("init", "--state", state, "--config", config_with(tmp_path, f"user=cdc password={PASSWORD}"))
    refused(done, ExitCode.CONFIG, "the connection string contains a password")
    assert PASSWORD not in done.err


def config_with(folder: Path, dsn: str) -> Path:
    path = folder / "capture.toml"
    path.write_text(f'[capture]\ndsn = "{dsn}"\n')
    return path


def test_a_password_file_that_is_missing_open_to_others_or_wrong_is_named(node: Cluster, tmp_path: Path) -> None:
    state, dsn = tmp_path / "state", node.url(user="cdc")
    done = cdcctl("init", "--state", state, "--dsn", dsn)
    refused(done, ExitCode.NODE_UNFIT, "no password supplied")
    missing = tmp_path / "missing"
    done = cdcctl("init", "--state", state, "--dsn", dsn, PGPASSFILE=str(missing))
    refused(done, ExitCode.CONFIG, f"cannot read the password file {missing}")
    path = password_file(tmp_path, 0o644)
    done = cdcctl("init", "--state", state, "--dsn", dsn, PGPASSFILE=str(path))
    refused(done, ExitCode.CONFIG, f"the password file {path} is readable by other users: mode 0644")
    password_file(tmp_path, password="wrong-one")
    done = cdcctl("init", "--state", state, "--dsn", dsn, PGPASSFILE=str(path))
    refused(done, ExitCode.NODE_UNFIT, "password authentication failed")
    assert "wrong-one" not in done.err
    assert not state.exists()
    password_file(tmp_path)
    succeeded(cdcctl("init", "--state", state, "--dsn", dsn, PGPASSFILE=str(path)))


def test_only_a_named_group_shares_the_state(node: Cluster, tmp_path: Path) -> None:
    secret = {"PGPASSWORD": PASSWORD}
    group, state, path = grp.getgrall()[-1], tmp_path / "state", tmp_path / "tidemark.toml"
    path.write_text(f'[capture]\ndsn = "{node.url(user="cdc")}"\ngroup = "{group.gr_name}"\n[metrics]\nport = 0\n')
    succeeded(cdcctl("init", "--state", state, "--config", path, **secret))
    with running(tmp_path, "run", "sidecar", "--state", state, **secret) as sidecar:
        sidecar.wait_for_err('"event": "ready"')
        for found in [state, *state.rglob("*")]:
            about = found.lstat()
            mode = stat.S_IMODE(about.st_mode) & ~stat.S_ISGID
            assert mode == (0o770 if found.is_dir() else 0o660), f"{found}: {mode:04o}"
            assert about.st_gid == group.gr_gid, found
        assert sidecar.stop(signal.SIGTERM) == ExitCode.SUCCESS


def test_an_unknown_group_is_refused_by_name(node: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(f'[capture]\ndsn = "{node.url(user="cdc")}"\ngroup = "no such group"\n')
    done = cdcctl("init", "--state", tmp_path / "state", "--config", path)
    refused(done, ExitCode.CONFIG, "capture.group: there is no group 'no such group'")
    assert not (tmp_path / "state").exists()
