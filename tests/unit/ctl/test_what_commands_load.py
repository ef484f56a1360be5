"""The packages that a command imports, as it runs: only those that it uses, and only click for help."""

import functools
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest
from tidemark_ctl.loading import Deferred, Entry, LazyGroup
from tidemark_ctl.main import cdcctl
from tidemark_ctl.settings import WRITTEN_BY_INIT

from tidemark.io.process.config_loading import load_config
from tidemark.io.process.marker_key import make_marker_key
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import SystemIdentifier
from tidemark.wire.state.values import Identity

ROOT = Path(__file__).resolve().parents[3]
ARCHIVE = "archive"  # in the state folder
PROGRAM = """
import sys
from {module} import main
status = 0
try:
    main()
except SystemExit as ended:
    status = int(ended.code or 0)
print(status, *{{name.partition(".")[0] for name in sys.modules}}, file=sys.stderr)
"""
GROUPS = ("archive", "lake", "parked", "reader", "realtime", "run", "spark", "table")
LEAVES = (
    *("archive repair", "archive status", "check", "decode", "init", "reader drop", "reader list"),
    *("reader resume", "realtime off"),
    *("lake adopt", "lake check", "lake describe", "lake list", "lake remove"),
    *("parked drop", "parked list", "parked retry"),
    *("realtime on", "realtime status", "replay", "rewind", "run archiver", "run server", "run sidecar"),
    *("spark accept-break", "spark prepare", "spark run"),
    *("status", "table add", "table recopy", "table resume", "tail"),
)
READ_ALONE = ("archive status", "parked list", "reader list", "realtime status", "status")
HELP_ALONE = frozenset({"click", "msgspec"})
STATE_ALONE = frozenset({"click", "google_crc32c", "lmdb", "lz4", "msgspec", "zstandard"})
NODE = STATE_ALONE | {"psycopg"}
DECODER = STATE_ALONE | {"numpy", "pyarrow"}
NOWHERE = "postgresql:///postgres?host=/nowhere"


@dataclass(frozen=True, slots=True)
class CommandRun:
    """A command that runs on a new state, without a server, and the packages that it may load."""

    options: str
    may_load: frozenset[str]
    exit_code: ExitCode = ExitCode.SUCCESS
    starts_another: bool = False  # which loads what the command must not load

    def arguments(self, command: str, state: Path) -> list[str]:
        """Return its command line, for a state of `new_state`."""
        options = self.options.format(archive=state / ARCHIVE, state=state)
        return [*command.split(), *options.split()]


RUNS = {
    **{command: CommandRun("--state {state}", STATE_ALONE) for command in READ_ALONE},
    "archive repair": CommandRun("--state {state} --yes", NODE | DECODER, ExitCode.CONFIG),
    "check": CommandRun("--state {state} --deadline-s 1", NODE, ExitCode.UNEXPECTED),
    "decode": CommandRun("--state {state} --archive {archive}", DECODER, ExitCode.CONFIG),
    "init": CommandRun("--state {state}", NODE | DECODER, ExitCode.NODE_UNREACHABLE),
    "lake adopt": CommandRun("--lake {state} --state {state}", STATE_ALONE, ExitCode.CONFIG, starts_another=True),
    "lake check": CommandRun("--lake {state}", HELP_ALONE, ExitCode.CONFIG, starts_another=True),
    "lake describe": CommandRun("--lake {state} public.account", HELP_ALONE, ExitCode.CONFIG, starts_another=True),
    "lake list": CommandRun("--lake {state}", HELP_ALONE, ExitCode.CONFIG, starts_another=True),
    "lake remove": CommandRun(
        "--lake {state} --state {state} --all", STATE_ALONE, ExitCode.CONFIG, starts_another=True
    ),
    "parked drop": CommandRun("--state {state} --yes --all", STATE_ALONE),
    "parked retry": CommandRun("--state {state} 7", STATE_ALONE, ExitCode.CONFIG),
    "reader drop": CommandRun("--state {state} --yes nobody", STATE_ALONE, ExitCode.CONFIG),
    "reader resume": CommandRun("--state {state} nobody", STATE_ALONE, ExitCode.CONFIG),
    "realtime off": CommandRun("--state {state} --deadline-s 1", NODE),
    "realtime on": CommandRun("--state {state} --deadline-s 1", NODE, ExitCode.UNEXPECTED),
    "replay": CommandRun(
        "--lake {state} --table public.account --at 0/1 --to {state}/replayed",
        HELP_ALONE,
        ExitCode.CONFIG,
        starts_another=True,
    ),
    "rewind": CommandRun("--state {state} --yes", NODE | DECODER, ExitCode.CONFIG),
    "spark accept-break": CommandRun("--state {state} --accept-break", STATE_ALONE),
    "table add": CommandRun(
        "--state {state} --archive {archive} --lake {state} --from 0/1 public.account",
        STATE_ALONE,
        ExitCode.CONFIG,
        starts_another=True,
    ),
    "table recopy": CommandRun("--state {state} public.account", NODE, ExitCode.STATE),
    "table resume": CommandRun("--state {state} public.account", STATE_ALONE, ExitCode.CONFIG),
    "tail": CommandRun(NOWHERE, NODE | DECODER, ExitCode.NODE_UNREACHABLE),
}
DAEMONS = {
    "run archiver",
    "run server",
    "run sidecar",
    "spark prepare",
    "spark run",
}  # the command is replaced by another program


@functools.cache
def declared() -> frozenset[str]:
    """Return the names by which the packages of all dependencies and extras are imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    names = {re.split(r"[\[<>=~! ;]", requirement)[0].replace("_", "-").lower() for requirement in requirements}
    return frozenset(
        package
        for package, distributions in packages_distributions().items()
        if names & {distribution.replace("_", "-").lower() for distribution in distributions}
    )


def new_state(folder: Path) -> Path:
    """Create a state and its empty archive; its node does not exist. Return the folder."""
    archive = folder / ARCHIVE
    archive.mkdir(parents=True)
    (folder / WRITTEN_BY_INIT).write_text(f'[capture]\ndsn = "{NOWHERE}"\n\n[archive]\nfolder = "{archive}"\n')
    identity = Identity("main", SystemIdentifier(1), "00" * 16, 15, 16 << 20, 1 << 24)
    made = StateFolder(folder)
    StateStore.create(made, identity).close()
    make_marker_key(load_config(None, {}), made)
    return folder


def loaded(module: str, *arguments: str, exit_code: ExitCode = ExitCode.SUCCESS) -> set[str]:
    """Run a program to its end; return the declared packages that it imported."""
    command = [sys.executable, "-c", PROGRAM.format(module=module), *arguments]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60, cwd=ROOT, stdin=subprocess.DEVNULL
    )
    status, *names = done.stderr.splitlines()[-1].split()
    assert int(status) == exit_code, done.stderr
    assert "importlib" in names
    return set(names) & declared()


def test_the_command_groups_are_listed() -> None:
    assert isinstance(cdcctl, LazyGroup)
    found = {name: cdcctl.get_command(click.Context(cdcctl), name) for name in cdcctl.entries}
    assert {name for name, command in found.items() if isinstance(command, click.Group)} == set(GROUPS)


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_help_loads_no_command(group: str) -> None:
    assert loaded("tidemark_ctl.main", *group.split(), "--help") == {"click"}


@pytest.mark.parametrize("command", LEAVES)
def test_the_help_of_a_command_loads_no_more_than_the_state_needs(command: str) -> None:
    used = loaded("tidemark_ctl.main", *command.split(), "--help")
    assert used <= (STATE_ALONE if command in READ_ALONE else HELP_ALONE)


@pytest.mark.parametrize("command", RUNS)
def test_a_command_that_runs_loads_no_more_than_it_needs(command: str, tmp_path: Path) -> None:
    run = RUNS[command]
    arguments = run.arguments(command, new_state(tmp_path))
    assert loaded("tidemark_ctl.main", *arguments, exit_code=run.exit_code) <= run.may_load


def test_every_command_is_run_unless_a_daemon_replaces_it() -> None:
    assert set(LEAVES) == RUNS.keys() | DAEMONS


def test_every_action_accepts_the_options_of_its_command() -> None:
    deferred = [command for _, _, command in entries(cdcctl) if isinstance(command.callback, Deferred)]
    assert len(deferred) > len(READ_ALONE)
    for command in deferred:
        assert isinstance(command.callback, Deferred)
        options = {param.name for param in command.params if param.expose_value}
        assert options == set(inspect.signature(command.callback.load()).parameters), command.name


def test_the_archive_command_loads_no_other_command() -> None:
    assert loaded("tidemark_archiver.archive_command", "--help") == set()


def entries(group: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], Entry, click.Command]]:
    assert isinstance(group, LazyGroup)
    for name, entry in group.entries.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield (*path, name), entry, command
        if isinstance(command, LazyGroup):
            yield from entries(command, *path, name)


def test_each_line_of_the_help_is_the_first_sentence_of_the_commands_own_help() -> None:
    found = {path: (entry.summary, command.get_short_help_str(limit=1000)) for path, entry, command in entries(cdcctl)}
    assert {path: said for path, (said, _) in found.items()} == {path: own for path, (_, own) in found.items()}
    leaves = {path for path, _, command in entries(cdcctl) if not isinstance(command, click.Group)}
    assert leaves == {tuple(command.split()) for command in LEAVES}


def test_every_module_of_a_command_is_in_a_table() -> None:
    known = {entry.module for _, entry, _ in entries(cdcctl)}
    folder = ROOT / "ctl" / "tidemark_ctl" / "commands"
    files = {path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")}
    modules = {".".join(part for part in path.parts if part != "__init__") for path in files}
    assert known == modules - {""}  # the folder itself is no command
