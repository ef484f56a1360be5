"""The source files, their order, and the way to run them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers.postgres import SUPERUSER, Cluster
from tests.support.workloads.regression_sql.source import SourcePackage

# The variables that pg_regress sets for psql (pg_regress.c, psql_start_test): they change output and sometimes tests.
ENVIRONMENT = {
    "PGTZ": "PST8PDT",
    "PGDATESTYLE": "Postgres, MDY",
    "PGOPTIONS": "-c intervalstyle=postgres_verbose",
    "PG_DLSUFFIX": ".so",
}
FIRST = "test_setup"  # creates the tables that the others use
PART_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Part:
    """A script for psql, or a specification for isolationtester."""

    suite: str
    path: Path

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.path.name}"

    @property
    def is_specification(self) -> bool:
        return self.path.suffix == ".spec"

    def run(self, node: Cluster, made: SourcePackage, database: str) -> str:
        """Run it to its end, with any result; return its output. Raises if it does not end."""
        where = f"host={node.folder} port={node.port} user={SUPERUSER} dbname={database}"
        if self.is_specification:
            command = [str(made.isolation / "isolationtester"), where]
        else:
            shown = ("HIDE_TABLEAM=on", "HIDE_TOAST_COMPRESSION=on")
            command = [str(node.server.client("psql")), "-X", "-a", "-q", *(f"-v{name}" for name in shown), where]
        places = {"PG_ABS_SRCDIR": made.tests, "PG_ABS_BUILDDIR": node.folder / "tests", "PG_LIBDIR": made.libraries}
        # NB: specifications find their sessions by this name, to cancel and to end them.
        named = {"PGAPPNAME": f"{'isolation' if self.is_specification else 'pg_regress'}/{self.path.stem}"}
        environment = [f"{name}={value}" for name, value in {**ENVIRONMENT, **places, **named}.items()]
        # NB: the output need not be UTF-8, and a failed session is not a failure here.
        shell = 'input=$1; shift; "$@" <"$input" 2>&1 | iconv -c -f UTF-8 -t UTF-8; true'
        program = [*environment, "sh", "-c", shell, "sh", str(self.path), *command]
        return node.run(Path("/usr/bin/env"), *program, timeout_s=PART_TIMEOUT_S)


def parts_of(made: SourcePackage) -> dict[str, list[Part]]:
    """Return all suites, each in the order of its schedule."""
    return {
        "regress": [Part("regress", path) for path in _scheduled(made.tests, "parallel_schedule", "sql")],
        "isolation": [Part("isolation", path) for path in _scheduled(made.isolation, "isolation_schedule", "specs")],
        "test_decoding": [Part("test_decoding", path) for path in _listed(made.plugin)],
    }


def _scheduled(folder: Path, schedule: str, scripts: str) -> Iterator[Path]:
    suffix = {"sql": ".sql", "specs": ".spec"}[scripts]
    for line in (folder / schedule).read_text().splitlines():
        kind, _, names = line.partition(":")
        if kind == "test":
            yield from (folder / scripts / f"{name}{suffix}" for name in names.split())


def _listed(folder: Path) -> Iterator[Path]:
    """Return the tests that a module's Makefile lists."""
    makefile = (folder / "Makefile").read_text().replace("\\\n", " ")
    for variable, scripts, suffix in (("REGRESS", "sql", ".sql"), ("ISOLATION", "specs", ".spec")):
        found = re.search(rf"^{variable} = (.*)$", makefile, re.MULTILINE)
        if found is None:
            raise AssertionError(f"{folder}/Makefile lists no {variable}")
        yield from (folder / scripts / f"{name}{suffix}" for name in found[1].split())
