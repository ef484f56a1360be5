"""The packages that a command imports: only those that it uses, and only click for help."""

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest
from tidemark_ctl.loading import Deferred, Entry, LazyGroup
from tidemark_ctl.main import cdcctl

from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import SystemIdentifier
from tidemark.wire.state import Identity

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from {module} import main
status = 0
try:
    main()
except SystemExit as ended:
    status = ended.code
print(status, *{{name.partition(".")[0] for name in sys.modules}}, file=sys.stderr)
"""
GROUPS = ("archive", "reader", "realtime", "run", "spark", "table")
LEAVES = (
    *("archive repair", "archive status", "check", "decode", "init", "reader drop", "reader list", "realtime off"),
    *("realtime on", "realtime status", "rewind", "run archiver", "run sidecar", "spark accept-break", "spark run"),
    *("status", "table recopy", "tail"),
)
READ_ALONE = ("archive status", "reader list", "realtime status", "status")
HELP_ALONE = {"click", "msgspec", "pydantic"}
STATE_ALONE = {"click", "google_crc32c", "lmdb", "lz4", "msgspec", "pydantic", "zstandard"}


def declared() -> set[str]:
    """Return the names by which the packages of all dependencies and extras are imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    names = {re.split(r"[\[<>=~! ;]", requirement)[0].replace("_", "-").lower() for requirement in requirements}
    return {
        package
        for package, distributions in packages_distributions().items()
        if names & {distribution.replace("_", "-").lower() for distribution in distributions}
    }


def new_state(folder: Path) -> None:
    """Create a state and its empty archive."""
    archive = folder / "archive"
    archive.mkdir()
    (folder / "tidemark.toml").write_text(f'[archive]\nfolder = "{archive}"\n')
    identity = Identity("main", SystemIdentifier(1), "00" * 16, 15, 16 << 20, 1 << 24)
    StateStore.create(StateFolder(folder), identity).close()


def loaded(module: str, *arguments: str) -> set[str]:
    """Run a program to its end; return the declared packages that it imported."""
    command = [sys.executable, "-c", PROGRAM.format(module=module), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, cwd=ROOT)
    status, *names = done.stderr.splitlines()[-1].split()
    assert status in ("0", "None"), done.stderr
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


@pytest.mark.parametrize("command", READ_ALONE)
def test_a_command_that_reads_the_state_loads_no_more_than_that(command: str, tmp_path: Path) -> None:
    new_state(tmp_path)
    assert loaded("tidemark_ctl.main", *command.split(), "--state", str(tmp_path)) <= STATE_ALONE


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
