"""The configuration of a command: `--config`, else the file that `init` wrote into the state folder."""

import json
import os
from pathlib import Path

import click

from tidemark.io.host.disk import writing
from tidemark.io.process.config import Config
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.config_reference import CONFIG_REFERENCE
from tidemark.io.process.metrics_ports import assigned_ports
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import StateError

WRITTEN_BY_INIT = "tidemark.toml"


def config_path(state: Path, config: Path | None) -> Path | None:
    """Return the file to read; None if there is none, so that every key has its default."""
    written = state / WRITTEN_BY_INIT
    if config is not None:
        return config
    try:
        return written if written.exists() else None
    except OSError as error:
        hint = (
            "run the command as the user of the capture, and check the permissions of the folder and of those above it"
        )
        raise StateError(f"the state folder {state} cannot be read: {error.strerror}", hint=hint) from error


def load(state: Path, config: Path | None) -> Config:
    """Return the configuration, with the overrides of the environment."""
    path = config_path(state, config)
    ports = assigned_ports(StateFolder(state))
    return load_config(path, os.environ, ports.defaults() if ports is not None else None)


def load_with_folder(state: Path, config: Path | None) -> tuple[Config, StateFolder]:
    """Return the configuration and the state folder, for a command that writes; it sets the process's umask."""
    chosen = load(state, config)
    folder = StateFolder(state.resolve(), shared_with_group=bool(chosen.capture.group))
    folder.relax_umask()
    return chosen, folder


def write(
    state: Path,
    *,
    dsn: str,
    name: str | None,
    databases: tuple[str, ...],
    tables: tuple[str, ...],
    archive: Path | None,
) -> Path:
    """Write the configuration of a capture that is created without one; return its path."""
    named = "" if name is None else f"name = {toml_text(name)}\n"
    text = (
        f"# Written by `cdcctl init`; {CONFIG_REFERENCE} describes every key.\n"
        f"[capture]\n{named}dsn = {toml_text(dsn)}\n\n"
        f"[select]\ndatabases = {toml_text(databases)}\ntables = {toml_text(tables)}\n"
    )
    if archive is not None:
        text += f"\n[archive]\nfolder = {toml_text(str(archive))}\n"
    return _put(StateFolder(state), text)


def toml_text(value: str | tuple[str, ...]) -> str:
    """Return a string or an array of strings in TOML: as in JSON, but it has no surrogates, and escapes U+007F."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def keep(folder: StateFolder, config: Path) -> None:
    """Copy `config` into the state folder: commands without `--config` use the copy."""
    text = config.read_text(encoding="utf-8")
    path = folder.root / WRITTEN_BY_INIT
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        _put(folder, text)


def _put(folder: StateFolder, text: str) -> Path:
    path = folder.root / WRITTEN_BY_INIT
    temporary = path.with_suffix(".new")
    with writing(path):
        folder.root.mkdir(mode=folder.folder_mode, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, folder.file_mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.rename(path)  # atomic: an incomplete file would obstruct the next attempt
    click.echo(f"configuration written to {path}", err=True)
    return path
