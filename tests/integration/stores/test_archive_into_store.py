"""`cdcctl table add` and `cdcctl table resume --archive` write a lake in an object store as one in a folder."""

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.lakes.given_up_lake import GivenUpLake, record_given_up_tables
from tests.support.lakes.lake_contents import log_of, replica_of
from tests.support.lakes.late_lake import Captured, record_late_tables
from tests.support.lakes.stored_lake import StoredLake
from tests.support.processes.cdcctl import Done, refused, succeeded
from tests.support.servers.object_store import ENVIRONMENT
from tidemark.model.errors import ExitCode
from tidemark.pipeline.storage.stores import store_of

pytestmark = pytest.mark.feature("L07")
LOCK = "_pipeline.lock"
ADD_KILLS = ("earlier-marked", "earlier-written", "earlier-committed")
RESUME_KILLS = ("log-appended", "replica-changed:2", "table-caught-up")
RESUMED = ("keyed", "keyless", "parts")
SECRET = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def given_up(tmp_path_factory: pytest.TempPathFactory) -> GivenUpLake:
    return record_given_up_tables(tmp_path_factory.mktemp("given-up"))


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return record_late_tables(tmp_path_factory.mktemp("earlier"))


def upload(lake: Path, stored: StoredLake) -> None:
    """Write the files of a lake in a folder to the store."""
    for path in lake.rglob("*"):
        if path.is_file() and path.name != LOCK:
            store_of(stored.root).replace(f"{stored.root}/{path.relative_to(lake)}", path.read_bytes())


def downloaded(stored: StoredLake, to: Path) -> Path:
    """Copy the lake from the store to a new folder."""
    for name in _names(stored, ""):
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store_of(stored.root).read(f"{stored.root}/{name}"))
    return to


def _names(stored: StoredLake, folder: str) -> Iterator[str]:
    store, place = store_of(stored.root), f"{stored.root}/{folder}".rstrip("/")
    with suppress(FileNotFoundError):  # it has only folders
        yield from (f"{folder}{file.name}" for file in store.files(place))
    for name in store.folders(place):
        yield from _names(stored, f"{folder}{name}/")


def without_secret(done: Done) -> Done:
    assert SECRET not in done.out.decode() + done.err
    return done


def test_tables_are_added_to_a_lake_in_a_store_also_after_kills(
    late: Captured, stored: StoredLake, tmp_path: Path
) -> None:
    upload(late.root / "late" / "lake", stored)
    environment = stored.server.environment()
    for point in ADD_KILLS:
        killed = without_secret(late.add(stored.root, "public.keyless", TIDEMARK_FAILPOINT=point, **environment))
        assert killed.code == 128 + signal.SIGKILL, (point, killed.err)
    report = json.loads(without_secret(succeeded(late.add(stored.root, "public.keyless", "--json", **environment))).out)
    assert report["replica"] == "all rows, from the log"
    backup = ("--base-backup", late.root / "backup")
    for table in ("keyed", "parts"):
        report = json.loads(succeeded(late.add(stored.root, f"public.{table}", *backup, "--json", **environment)).out)
        assert (report["rows"] > 0, report["replica"]) == (True, "all rows, from the base backup")
    found = downloaded(stored, tmp_path / "lake")
    late.land_rest(found)
    for table in ("keyless", "keyed", "parts"):
        assert log_of(found, table) == log_of(late.always, table)
        assert replica_of(found, table) == late.rows[table]


def test_given_up_tables_of_a_lake_in_a_store_get_their_changes_also_after_kills(
    given_up: GivenUpLake, stored: StoredLake, tmp_path: Path
) -> None:
    upload(given_up.root / "lake", stored)
    environment = stored.server.environment()
    for point in RESUME_KILLS:
        killed = without_secret(given_up.resume(stored.root, "public.keyed", TIDEMARK_FAILPOINT=point, **environment))
        assert killed.code == 128 + signal.SIGKILL, (point, killed.err)
    names = [f"public.{table}" for table in RESUMED]
    report = json.loads(without_secret(succeeded(given_up.resume(stored.root, *names, "--json", **environment))).out)
    assert list(report) == names
    found = downloaded(stored, tmp_path / "lake")
    given_up.land_rest(found)
    for table in RESUMED:
        assert log_of(found, table) == log_of(given_up.always, table)
        assert replica_of(found, table) == given_up.rows[table]


def test_the_store_and_its_credentials_come_from_the_configuration(
    late: Captured, given_up: GivenUpLake, stored: StoredLake, tmp_path: Path
) -> None:
    config, credentials = tmp_path / "tidemark.toml", tmp_path / "credentials"
    config.write_text(
        f'[lake]\nstore_endpoint = "{stored.server.endpoint}"\nstore_credentials_file = "{credentials}"\n'
    )
    credentials.write_text(f"[default]\naws_access_key_id = of-the-file\naws_secret_access_key = {SECRET}\n")
    credentials.chmod(0o600)
    upload(late.root / "late" / "lake", stored)
    stored.server.requests.clear()
    without_secret(succeeded(late.add(stored.root, "public.keyless", "--config", config)))
    assert {request.access_key for request in stored.server.requests} == {"of-the-file"}
    upload(given_up.root / "lake", other := StoredLake(stored.server, f"{stored.root}-given-up"))
    stored.server.requests.clear()
    without_secret(succeeded(given_up.resume(other.root, "public.keyed", "--config", config)))
    assert {request.access_key for request in stored.server.requests} == {"of-the-file"}


def test_a_store_that_refuses_or_does_not_answer_is_named_without_a_secret(
    late: Captured, given_up: GivenUpLake, stored: StoredLake
) -> None:
    upload(late.root / "late" / "lake", stored)
    environment = {**stored.server.environment(), "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    for done in (
        late.add(stored.root, "public.keyless", **environment),
        given_up.resume(stored.root, "public.keyed", **environment),
    ):
        refused(without_secret(done), ExitCode.CONSUMER_FAILED, stored.root)
