"""An invalid configuration: every input of it, by the programs, with the file and the key named."""

import json
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.postgres import Cluster
from tidemark.model.errors import ExitCode

pytestmark = pytest.mark.usefixtures("forked")

BAD = (
    ("[capture]\nnaem = 'x'", "unknown key capture.naem"),
    ("[ring]\nbytes_max = -1", "ring.bytes_max: Expected `int` >= 0"),
    ("[ring]\nbytes_max = 1000", "ring.bytes_max is 1000: at least 524288, or 0 for the default"),
    ("[copy]\nenabled = 'perhaps'", "copy.enabled: Expected `bool`, got `str`"),
    ("[select]\ntables = 7", "select.tables: "),
    ("ring = 5", "ring: "),
    ("[ring", "is not TOML"),
)


def inserted(lines: Path) -> list[int]:
    """Return the keys of the inserts in a file of JSON lines."""
    items = [json.loads(line) for line in lines.read_text().splitlines()]
    return [item["after"]["id"] for item in items if item["op"] == "i"]


@pytest.mark.parametrize(("text", "reported"), BAD)
def test_init_names_file_and_key_of_a_bad_configuration(tmp_path: Path, text: str, reported: str) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(text)
    refused(cdcctl("init", "--state", tmp_path / "state", "--config", path), ExitCode.CONFIG, str(path), reported)
    assert not (tmp_path / "state").exists()


def test_the_sidecar_names_file_and_key_and_a_typo_in_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "tidemark.toml"
    path.write_text(BAD[0][0])
    command = ("run", "sidecar", "--state", tmp_path / "state")
    for more, variables, reported in (
        (("--config", path), {}, f"{path}: {BAD[0][1]}"),
        (("--config", tmp_path / "none.toml"), {}, f"cannot read the configuration {tmp_path / 'none.toml'}"),
        (("--config", tmp_path), {}, f"cannot read the configuration {tmp_path}"),
        ((), {"TIDEMARK_OUTBOX__BYTE": "1"}, "unknown key outbox.byte"),
        ((), {"TIDEMARK_METRICS__PORT": "web"}, "metrics.port: "),
    ):
        done = cdcctl(*command, *more, **variables)
        assert done.code == ExitCode.CONFIG, done.err
        assert reported in done.err
        assert '"hint": ' in done.err
        assert "Traceback" not in done.err


def test_a_consumer_that_cannot_write_ends_the_sidecar_with_a_separate_code_and_receives_all_afterwards(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY)", database)
    into_nothing = {"TIDEMARK_DELIVER__CONSUMER": "jsonl", "TIDEMARK_DELIVER__JSONL_FILE": "/dev/full"}
    sidecar = Sidecar(cluster, database, tmp_path, copy=False, **into_nothing)
    sidecar.init()
    try:
        sidecar.start()
        cluster.sql("INSERT INTO account VALUES (1)", database)
        sidecar.ended(ExitCode.CONSUMER_FAILED, "/dev/full", "No space left on device")
        lines = tmp_path / "lines"
        sidecar.options["TIDEMARK_DELIVER__JSONL_FILE"] = str(lines)
        sidecar.start()
        cluster.sql("INSERT INTO account VALUES (2)", database)
        sidecar.wait_until(lambda: inserted(lines) == [1, 2], "two lines")
        assert sidecar.stop() == ExitCode.SUCCESS
    finally:
        sidecar.close()


def test_daemons_run_with_the_configuration_of_init(cluster: Cluster, tmp_path: Path) -> None:
    state, path = tmp_path / "state", tmp_path / "mine.toml"
    text = f'[capture]\ndsn = "{cluster.url()}"\n[select]\ntables = ["public.*"] # mine\n[metrics]\nport = -1\n'
    path.write_text(text)
    refused(cdcctl("init", "--state", state, "--config", path), ExitCode.CONFIG, "metrics.port")
    path.write_text(text.replace("-1", "0"))
    succeeded(cdcctl("init", "--state", state, "--config", path))
    assert (state / "tidemark.toml").read_text() == path.read_text()
    succeeded(cdcctl("init", "--state", state))
    path.write_text(text.replace("-1", "1"))
    succeeded(cdcctl("init", "--state", state, "--config", path))
    assert (state / "tidemark.toml").read_text() == path.read_text()


def test_a_range_that_ends_before_it_begins_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    state = tmp_path / "state"
    succeeded(cdcctl("init", "--state", state, "--dsn", cluster.url()))
    wrong = ("--from", "0/9000000", "--to", "0/8000000")
    done = cdcctl("decode", "--state", state, "--archive", cluster.data / "pg_wal", *wrong)
    refused(done, ExitCode.CONFIG, "0/9000000 comes after 0/8000000")
