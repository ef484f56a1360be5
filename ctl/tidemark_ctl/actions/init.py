"""`cdcctl init`: check the node, read the seed, create the state folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage

import click

from tidemark.engine.selection import Selection
from tidemark.io.archive.archive_setup import (
    ArchiveKind,
    archive_kind,
    archive_setting,
    check_can_fill,
    prepare_archive,
    probe_line,
    try_program,
)
from tidemark.io.archive.spool import Spool
from tidemark.io.archive.spool_access import record_user
from tidemark.io.archive.spool_manifest import read_manifest
from tidemark.io.backup.backup import open_backup
from tidemark.io.flight.server_token import make_server_token
from tidemark.io.node.node import Node
from tidemark.io.process.config import Config
from tidemark.io.process.config_loading import parse_config
from tidemark.io.process.marker_key import make_marker_key
from tidemark.io.process.metrics_ports import assign_ports
from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.outbox_transaction import FREE_BYTES_MIN
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError, NodeUnreachable
from tidemark.model.lsn import format_lsn
from tidemark.model.mode import Stage
from tidemark.runtime.daemon.node_requests import NoMarkersOnStandby
from tidemark.runtime.plugins.plugins import load_plugins
from tidemark.runtime.recovery.lake_inventory import lake_inventory
from tidemark.runtime.recovery.rebuild import rebuild
from tidemark.runtime.seed.backup_reading import wal_of
from tidemark.runtime.seed.backup_seeding import seed_from_backup
from tidemark.runtime.seed.copy_rights import lacking_rights
from tidemark.runtime.seed.initialise import archiving_user, databases_of, initialise, initialise_from_backup
from tidemark.runtime.seed.steady_stream import check_stream
from tidemark_ctl import settings
from tidemark_ctl.output.seed_progress import OF_BACKUP, SeedProgress
from tidemark_ctl.terminal_log import TerminalLog

ALL_TABLES = ("*.*",)
_GUARDED = reporting_stuck_writers(TerminalLog())


def init(
    *,
    state: Path,
    config: Path | None,
    dsn: str | None,
    name: str | None,
    databases: tuple[str, ...],
    tables: tuple[str, ...],
    archive: Path | None,
    from_spool: Path | None,
    lake: str | None,
    from_backup: Path | None,
) -> None:
    """Run the command."""
    _check_plugins(state, config)
    if from_backup is not None:
        _check_alone(dsn=dsn, name=name, table=tables, from_spool=from_spool, lake=lake)
        _init_from_backup(state, config, databases, archive, from_backup)
        return
    if lake is not None and from_spool is None:
        raise ConfigError("--lake requires --from-spool", hint="omit --lake: a new state begins with a first copy")
    archive = archive and archive.absolute()  # daemons and the server have other working folders
    if from_spool is None and config is None and settings.config_path(state, None) is None:
        _write_settings(state, dsn=dsn, name=name, databases=databases, tables=tables, archive=archive)
    chosen = settings.load(state, config)
    _check_same(
        {
            "--dsn": (dsn, chosen.capture.dsn),
            "--name": (name, chosen.capture.name),
            "--database": (databases, chosen.select.databases),
            "--table": (tables, chosen.select.tables),
            "--archive": (archive, Path(chosen.archive.folder)),
        },
        where=settings.config_path(state, config),
    )
    folder = StateFolder(state, shared_with_group=bool(chosen.capture.group))
    _close_to_others(folder)
    folder.share(chosen.capture.group)
    is_new = (
        initialise(chosen, folder, SeedProgress(), guarded=_GUARDED)
        if from_spool is None
        else _rebuild(chosen, folder, from_spool, lake)
    )
    if chosen.has_archive:
        _report_archive(chosen, folder)
    if from_spool is None:
        _report_standby(chosen)
        _report_rights(chosen, folder)
    _report_ports(folder, config)
    _report_disk(folder)
    if config is not None:
        settings.keep(folder, config)
    if is_new:
        click.echo(f"state created in {state}; start it: cdcctl run sidecar --state {state}")
    else:
        click.echo(f"{state} already is the state of this capture")


def _check_plugins(state: Path, config: Path | None) -> None:
    """Raise the error with which a daemon would end: no state is created for it."""
    where = settings.config_path(state, config) or "the environment"
    load_plugins(settings.load(state, config), str(where))


def _report_ports(folder: StateFolder, config: Path | None) -> None:
    """Assign the ports of the metrics, and print where each process serves them; configured ports take precedence."""
    assigned = assign_ports(folder)
    chosen = settings.load(folder.root, config).metrics
    if not chosen.enabled:
        return
    pipeline = assigned.pipeline if assigned is not None else "none (--metrics-port)"
    click.echo(
        f"metrics on {chosen.host}: sidecar {chosen.port}, archiver {chosen.archiver_port}, pipeline {pipeline}",
        err=True,
    )


def _report_disk(folder: StateFolder) -> None:
    """Print that nothing can be delivered if the disk of the state has less space than is reserved there."""
    free = disk_usage(folder.root).free
    if free < FREE_BYTES_MIN:
        click.echo(
            f"the disk of {folder.root} has {free >> 20} MB of free space; the outbox takes nothing before it has more "
            f"than {FREE_BYTES_MIN >> 20} MB, which are reserved: delivery will wait",
            err=True,
        )


def _write_settings(
    state: Path,
    *,
    dsn: str | None,
    name: str | None,
    databases: tuple[str, ...],
    tables: tuple[str, ...],
    archive: Path | None,
) -> None:
    """Write the configuration of a capture that is created without one."""
    draft = settings.load(state, None)
    dsn = draft.capture.dsn if dsn is None else dsn
    if not dsn:
        raise ConfigError(
            "no node is named",
            hint="give --dsn, set TIDEMARK_CAPTURE__DSN, or give a --config that contains capture.dsn",
        )
    if name is not None:
        parse_config(f"[capture]\nname = {settings.toml_text(name)}\n", {}, where="--name")  # rejects an invalid name
    _close_to_others(StateFolder(state))
    with Node(dsn) as node:
        facts = node.check_fitness()
        user = archiving_user(node)
        is_chosen = draft.select.databases != Config().select.databases  # by the environment
        databases = databases or (draft.select.databases if is_chosen else (facts.database,))
        databases_of(
            node, replace(draft, select=replace(draft.select, databases=databases))
        )  # rejects those that match none
    check_stream(dsn, facts.system_identifier)
    if archive is not None:
        draft = replace(draft, archive=replace(draft.archive, folder=str(archive)))
        if archive_kind(archive, facts.system_identifier) is ArchiveKind.SPOOL:
            check_can_fill(draft, user)
    # Only now: files of a rejected attempt would obstruct the next one.
    settings.write(
        state,
        dsn=dsn,
        name=name,
        databases=databases,
        tables=tables or ALL_TABLES,
        archive=archive,
    )


def _close_to_others(folder: StateFolder) -> None:
    for line in folder.close_to_others():
        click.echo(line, err=True)


def _report_rights(config: Config, folder: StateFolder) -> None:
    for line in lacking_rights(config, folder):
        click.echo(line, err=True)


def _check_alone(**others: object) -> None:
    """Reject options that --from-backup ignores."""
    for name, given in others.items():
        if given:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} cannot be combined with --from-backup", hint="omit it, or set it in --config")


def _init_from_backup(
    state: Path, config: Path | None, databases: tuple[str, ...], archive: Path | None, backup: Path
) -> None:
    chosen = settings.load(state, config)
    if config is not None:
        _check_same({"--database": (databases, chosen.select.databases)}, where=config)
    folder = StateFolder(state, shared_with_group=bool(chosen.capture.group))
    if config is not None:
        selects = chosen.select.selection().selects_database
    else:
        selects = Selection(databases=databases or ("*",)).selects_database
    with open_backup(backup) as opened:
        segments = wal_of(opened, archive or (Path(chosen.archive.folder) if chosen.has_archive else None))
        progress = SeedProgress(reading=OF_BACKUP)
        seed = seed_from_backup(opened, segments, selects, chosen.seed.follows, progress)
    names = sorted(seed.databases.values())
    if missing := [pattern for pattern in databases if not any(map(Selection((pattern,)).selects_database, names))]:
        raise ConfigError(f"{backup} has no database {', '.join(missing)}", hint="choose with --database")
    _close_to_others(folder)
    folder.share(chosen.capture.group)
    is_new = initialise_from_backup(chosen, folder, seed, guarded=_GUARDED)
    _report_ports(folder, config)
    if config is not None:
        settings.keep(folder, config)
    if is_new and chosen.markers.key_file:
        click.echo(
            f"this state replaces an earlier one of capture {chosen.capture.name}: when a daemon starts on it, "
            "the processes of any other state with this key are fenced: they stop at its marker",
            err=True,
        )
    if is_new:
        click.echo(
            f"state created in {state}: {', '.join(names)} from {format_lsn(seed.lsn)} on, the end of the backup"
        )
    else:
        click.echo(f"{state} already is the state of this capture")


def _rebuild(config: Config, folder: StateFolder, from_spool: Path, lake: str | None) -> bool:
    """Recreate a lost state; return false if the state exists."""
    spool = Spool(from_spool)
    manifest = read_manifest(spool)
    inventory = lake_inventory(lake, manifest.identity, config.lake) if lake is not None else None
    prepare_archive(config, manifest.identity.system_identifier, None)
    stage = rebuild(config, folder, spool, inventory, guarded=_GUARDED)
    make_marker_key(config, folder)
    make_server_token(config.server, folder)
    if stage is Stage.FOLLOWER:
        what = "as a follower: it delivers nothing until the node is a primary"
        click.echo(f"rebuilt as of {manifest.start.position}, {what}", err=True)
    elif stage is not None:
        click.echo(f"rebuilt as of {manifest.start.position}: later changes are delivered again", err=True)
    return stage is not None


def _check_same(options: Mapping[str, tuple[object, object]], *, where: Path | None) -> None:
    """Reject options that contradict the configuration: they would have no effect."""
    for option, (given, configured) in options.items():
        if given and given != configured:
            raise ConfigError(f"{option} differs from {where}", hint="omit the option, or change the value there")


def _report_standby(config: Config) -> None:
    """Report that a standby is followed; or else that it accepts no markers, if markers.dsn is not set."""
    with Node(config.capture.dsn) as node:
        if not node.is_in_recovery():
            return
        if config.standby.follow:
            click.echo(
                f"{node.where} is a standby: the capture follows it, and delivers nothing until its promotion", err=True
            )
        elif not config.markers.dsn:
            click.echo(f"{node.where} is a standby: no markers are written. {NoMarkersOnStandby.hint}", err=True)


def _report_archive(config: Config, state: StateFolder) -> None:
    """Print who fills the archive, and how to fill a spool; raise an error if the server could not fill it."""
    where = config.archive.folder
    if not Spool(Path(where)).is_ours:
        click.echo(
            f"{where} is filled by another program: Tidemark reads WAL there, and writes and removes nothing", err=True
        )
        return
    if config.archive.filled_by != "archive_command":
        click.echo(f"the spool is {where}; it is filled by {config.archive.filled_by}, as the capture's user", err=True)
        return
    try:
        with Node(config.capture.dsn) as node:
            user = archiving_user(node)
    except NodeUnreachable:
        user = None
    if user is not None:
        with StateStore.open(state) as store:
            record_user(store, user)
    click.echo(f"the spool is {where}", err=True)
    if try_program(config, user):
        assert user is not None, "this was tried"
        click.echo(f"the user of the server, {user.name}, can write there and run the program", err=True)
    else:
        click.echo(
            "NOT CHECKED: the user of the server is unknown here (another host, or a container). That user "
            "must be able to write into the spool (capture.group), and to run the program as the server does:",
            err=True,
        )
        click.echo(f"  {probe_line(config)}", err=True)
    click.echo("add these lines to postgresql.conf to fill it:", err=True)
    click.echo(f"archive_mode = on\n{archive_setting(config)}", err=True)
