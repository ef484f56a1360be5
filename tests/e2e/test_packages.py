"""The wheel and the sdist, each installed with its requirements only: without the extra `spark`, then with it.

The wheel has compiled kernels where a compiler is installed; the sdist's is built without one.
"""

import json
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import cdcctl, refused, running, succeeded
from tests.support.processes.packages import (
    ROOT,
    Installed,
    build_sdist,
    build_wheel,
    copy_sources,
    environment_in,
    run,
)
from tests.support.servers.postgres import Cluster
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.wal.kernel import COMPILED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.feature("N22")]
BUILT = ROOT / "build" / "packages"  # on the file system of .venv: packages are linked from there
LOCAL_SPARK = ("--master", "local[2]", "--driver-memory", "700m")
ROWS = 500
FOLDERS = (  # and the start of the packages in them
    ("archiver/tidemark_archiver", "archiver/"),
    ("ctl/tidemark_ctl", "ctl/"),
    ("pyspark_tidemark", ""),
    ("pyspark_tidemark_archive", ""),
    ("sidecar/tidemark_sidecar", "sidecar/"),
    ("tidemark", ""),
)
EARLIER_NAMES = {"archiver/__main__.py", "archiver/archive_command.py", "sidecar/__main__.py"}


@dataclass(frozen=True)
class Built:
    """A wheel, and its expected properties."""

    wheel: Path
    has_kernels: bool
    installed: Installed


@pytest.fixture(scope="module", autouse=True)
def _no_path_to_this_tree() -> Iterator[None]:
    """Spark's tests in the same process may have set it for Spark's helpers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def built(_no_path_to_this_tree: None) -> Iterator[dict[str, Built]]:
    shutil.rmtree(BUILT, ignore_errors=True)
    source = BUILT / "source"
    copy_sources(source)
    kernels = {"REQUIRE_CYTHON": "1"} if COMPILED else {"SKIP_CYTHON": "1"}
    sdist = build_sdist(source, BUILT / "sdist")
    wheels = {
        "wheel": (build_wheel(source, BUILT / "of_source", **kernels), COMPILED),
        "sdist": (build_wheel(sdist, BUILT / "of_sdist", SKIP_CYTHON="1"), False),
    }
    yield {
        name: Built(wheel, has_kernels, environment_in(BUILT / name)) for name, (wheel, has_kernels) in wheels.items()
    }
    shutil.rmtree(BUILT)


@pytest.fixture(params=["wheel", "sdist"], scope="module")
def package(request: pytest.FixtureRequest, built: dict[str, Built]) -> Built:
    return built[request.param]


def test_a_package_contains_all_that_runs_and_all_that_the_guide_names(package: Built) -> None:
    with zipfile.ZipFile(package.wheel) as opened:
        names = set(opened.namelist())
    data = next(name for name in names if name.endswith("share/tidemark/conf/tidemark.toml")).removesuffix(
        "conf/tidemark.toml"
    )
    for folder in ("conf", "docs"):
        files = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert files == {name.removeprefix(data) for name in names if name.startswith(f"{data}{folder}/")}
    modules = {
        str(path.relative_to(ROOT)).removeprefix(prefix)
        for folder, prefix in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".pxd") or path.name == "py.typed"
    }
    others = {name for name in names if not name.startswith(data) and ".dist-info/" not in name}
    kernels = {name for name in others if name.endswith(".so")}
    assert bool(kernels) is package.has_kernels
    assert others - kernels == modules | EARLIER_NAMES


def test_the_packages_differ_by_their_kernels_alone(built: dict[str, Built]) -> None:
    of_wheel, of_sdist = (contents(built[name].wheel) for name in ("wheel", "sdist"))
    assert of_wheel.keys() == of_sdist.keys()
    assert [name for name in of_wheel if of_wheel[name] != of_sdist[name]] == []
    assert any(name.endswith("/METADATA") for name in of_wheel), "requirements and extras"
    assert any(name.endswith("/entry_points.txt") for name in of_wheel), "programs"


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel without those that depend on the kernels: its tag, and the list of its files."""
    with zipfile.ZipFile(wheel) as opened:
        names = [name for name in opened.namelist() if not name.endswith((".so", "/WHEEL", "/RECORD"))]
        return {name: opened.read(name) for name in names}


def test_the_core_package_alone_prints_the_changes_of_a_node(package: Built, cluster: Cluster, database: str) -> None:
    installed = package.installed
    installed.install(package.wheel)
    away = BUILT  # this tree's modules cannot be imported from there
    assert installed.evaluate("tidemark.wal.kernel.COMPILED", away) == str(package.has_kernels)
    for name in ("tests", "pyspark", "deltalake", "cython", "pytest"):
        assert installed.evaluate(f"importlib.util.find_spec({name!r})", away) == "None"
    assert str(installed.folder) in installed.evaluate("tidemark.__file__", away)
    assert installed.evaluate("importlib.util.find_spec('ctl')", away) == "None"
    for name in ("sidecar", "archiver", "archiver.archive_command"):
        assert "usage:" in run(installed.python, "-m", name, "--help", cwd=away).lower()
    assert (installed.folder / "share/tidemark/conf/systemd/tidemark-sidecar@.service").exists()

    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
    cluster.sql("CHECKPOINT")
    with running(BUILT, "tail", cluster.dsn(database), program=installed.program) as tail:
        tail.wait_for_err("changes follow from here on")
        cluster.sql("INSERT INTO account VALUES (1, 'first')", database)
        assert json.loads(tail.wait_for_lines(1)[0])["after"] == {"id": 1, "note": "first"}


def test_the_pipeline_without_its_extra_is_refused_by_name(package: Built) -> None:
    arguments = ("spark", "run", "--state", BUILT / "none", "--lake", BUILT / "none")
    done = cdcctl(*arguments, program=package.installed.program)
    refused(done, ExitCode.CONFIG, "pyspark")
    assert 'pip install "tidemark[spark]"' in done.err


def test_a_package_with_the_extra_delivers_changes_into_the_lake(
    built: dict[str, Built], cluster: Cluster, database: str, tmp_path: Path
) -> None:
    package = built["sdist"]  # with interpreted kernels; all other tests of the pipeline have what the tree has
    installed, state, lake = package.installed, tmp_path / "state", tmp_path / "lake"
    installed.install(package.wheel, "spark")
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
    cluster.sql(f"INSERT INTO account SELECT n, 'copied' FROM generate_series(1, {ROWS}) n", database)
    cluster.sql("CHECKPOINT")
    dsn = cluster.dsn(database)
    succeeded(cdcctl("init", "--dsn", dsn, "--state", state, program=installed.program))
    ports = {"TIDEMARK_METRICS__ENABLED": "false"}
    with running(tmp_path, "run", "sidecar", "--state", state, program=installed.program, **ports) as sidecar:
        sidecar.wait_for_err('"event": "ready"')
        cluster.sql(
            "UPDATE account SET note = 'changed' WHERE id % 3 = 0;"
            "ALTER TABLE account ADD COLUMN more numeric(8,2) DEFAULT 1.25;"
            "DELETE FROM account WHERE id % 7 = 0;"
            "INSERT INTO account VALUES (0, 'last', 2.5)",
            database,
        )
        ((lsn,),) = cluster.sql("SELECT pg_logical_emit_message(true, 'end', '')", database)
        with StateStore.open(StateFolder(state), read_only=True) as store:
            sidecar.wait_for(lambda: reached(store, parse_lsn(str(lsn))), "the sidecar to deliver")
        arguments = ("spark", "run", "--state", state, "--lake", lake, *LOCAL_SPARK, "--", "--once")
        succeeded(cdcctl(*arguments, program=installed.program))
        asked = ("--dsn", dsn, "--state", str(state), "--lake", str(lake), "--json")
        reported = json.loads(run(installed.python, "-m", "tidemark.pipeline.lake.compare", *asked, cwd=tmp_path))
    (table,) = reported["tables"]
    assert table["identical"], table
    assert table["source_rows"] == ROWS - ROWS // 7 + 1


def reached(store: StateStore, lsn: Lsn) -> bool:
    delivered = store.view().delivered
    return delivered is not None and delivered.pointer.position.commit_lsn >= lsn
