"""Reads the configuration: TOML, then the environment; an unknown key is an error.

`TIDEMARK_<SECTION>__<KEY>` overrides a key (two underscores between them; lists are separated by commas). Secrets are
never keys: passwords come from PGPASSFILE or a service file, as libpq reads them.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import get_origin, get_type_hints

import msgspec

from tidemark.engine.ring import RING_BYTES_MIN
from tidemark.io.host.local_path import is_in_store, lake_location, local_path
from tidemark.io.process.config import PLUGIN_SECTIONS, STANDARD_OUTPUT, BadConfig, Config
from tidemark.io.process.config_faults import fault
from tidemark.io.process.lake_config import LakeConfig
from tidemark.io.process.plugin_config import plugin_faults

ENVIRONMENT_PREFIX = "TIDEMARK_"
_SEPARATOR = "__"
_BOOLEANS = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}
Assigned = Mapping[str, Mapping[str, object]]


def load_config(path: Path | None, environment: Mapping[str, str], assigned: Assigned | None = None) -> Config:
    """Return the configuration of `path` (None: all defaults) with the overrides of `environment`.

    `assigned`: values by section and key, which replace defaults.
    """
    text = ""
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BadConfig(f"the configuration {path} is not text in UTF-8: {error}") from error
        except OSError as error:
            hint = "name a file that exists and that this user may read"
            raise BadConfig(f"cannot read the configuration {path}: {error.strerror}", hint=hint) from error
    return parse_config(text, environment, where=str(path or "the environment"), assigned=assigned or {})


def parse_config(text: str, environment: Mapping[str, str], *, where: str, assigned: Assigned | None = None) -> Config:
    """Return the configuration of a TOML text with the overrides of `environment`."""
    try:
        given: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{where} is not TOML: {error}") from error
    for section, values in (assigned or {}).items():
        table = given.setdefault(section, {})
        if isinstance(table, dict):
            given[section] = {**values, **table}
    for section, key, value in _overrides(environment):
        table = given.setdefault(section, {})
        if isinstance(table, dict):
            table[key] = value
    if faults := _faults(given):
        raise BadConfig(f"{where}: {'; '.join(faults)}")
    config = msgspec.convert(given, Config, strict=False)
    _check_bounds_between_keys(config, where)
    return config


def _overrides(environment: Mapping[str, str]) -> list[tuple[str, str, object]]:
    found: list[tuple[str, str, object]] = []
    for variable in sorted(environment):
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        section, separator, key = name.lower().partition(_SEPARATOR)
        if variable != name and separator:
            shape = _shapes().get(section, {}).get(key)
            found.append((section, key, _from_text(environment[variable].strip(), shape)))
    return found


def _from_text(text: str, shape: object) -> object:
    """Return a value of the environment in the form that TOML has for it; numbers remain text."""
    if get_origin(shape) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return _BOOLEANS.get(text.lower(), text) if shape is bool else text


@cache
def _shapes() -> Mapping[str, Mapping[str, object]]:
    """Return the types of all keys with their bounds, by section; those of plug-ins are not known here."""
    sections = get_type_hints(Config)
    return {
        section: get_type_hints(keys, include_extras=True)
        for section, keys in sections.items()
        if section not in PLUGIN_SECTIONS
    }


def _faults(given: Mapping[str, object]) -> list[str]:
    """Return every unknown key and every wrong value, without the value: it may be a secret in the wrong place."""
    faults = []
    for section, values in given.items():
        if section in PLUGIN_SECTIONS:
            faults += plugin_faults(section, values)
            continue
        shapes = _shapes().get(section)
        if shapes is None:
            faults.append(f"unknown key {section}")
        elif not isinstance(values, dict):
            faults.append(f"{section}: Expected a section with keys")
        else:
            unknown = [f"unknown key {section}.{key}" for key in values if key not in shapes]
            wrong = [(key, fault(values[key], shape)) for key, shape in shapes.items() if key in values]
            faults += [*unknown, *(f"{section}.{key}: {reason}" for key, reason in wrong if reason)]
    return faults


def _check_bounds_between_keys(config: Config, where: str) -> None:
    _check_outbox(config, where)
    if 0 < config.ring.bytes_max < RING_BYTES_MIN:
        raise BadConfig(
            f"{where}: ring.bytes_max is {config.ring.bytes_max}: at least {RING_BYTES_MIN}, or 0 for the default"
        )
    if config.copy.base_backup and not config.has_archive:
        raise BadConfig(
            f"{where}: copy.base_backup requires archive.folder, with the WAL since the start of the backup"
        )
    _check_consumer(config, where)
    _check_standby(config, where)
    _check_lake(config.lake, where)
    lake_location(config.standby.lake, f"{where}: standby.lake")
    for key, path in (
        ("archive.folder", config.archive.folder),
        ("archive.program", config.archive.program),
        ("copy.base_backup", config.copy.base_backup),
        ("deliver.jsonl_file", "" if config.deliver.jsonl_file == STANDARD_OUTPUT else config.deliver.jsonl_file),
        ("markers.key_file", config.markers.key_file),
        ("standby.lake", "" if is_in_store(config.standby.lake) else config.standby.lake),
        ("lake.store_credentials_file", config.lake.store_credentials_file),
        ("server.tls_certificate", config.server.tls_certificate),
        ("server.tls_key", config.server.tls_key),
        ("server.token_file", config.server.token_file),
    ):
        local_path(path, f"{where}: {key}")
        if path and not Path(path).is_absolute():
            raise BadConfig(
                f"{where}: {key}: must be an absolute path: daemons, cdcctl and the server have different "
                "working directories"
            )
    for section, first, longest in (
        ("retry.", config.retry.first_s, config.retry.max_s),
        ("realtime.return_", config.realtime.return_first_s, config.realtime.return_max_s),
    ):
        if first > longest:
            raise BadConfig(f"{where}: {section}first_s: at most {section}max_s")


def _check_lake(lake: LakeConfig, where: str) -> None:
    patterns = [one.pattern for one in lake.tables]
    for number, one in enumerate(lake.tables):
        if one.pattern in patterns[:number]:
            raise BadConfig(
                f"{where}: lake.tables.{number}.pattern: {one.pattern} is in an earlier entry, which applies"
            )
        for conflict in one.conflicts():
            raise BadConfig(f"{where}: lake.tables.{number}.{conflict}")


def _check_consumer(config: Config, where: str) -> None:
    if config.deliver.consumer == "jsonl" and not config.deliver.jsonl_file:
        raise BadConfig(f"{where}: deliver.jsonl_file: the jsonl consumer needs it (`-` is standard output)")
    if config.consumer and not config.deliver.is_plugin:
        raise BadConfig(f"{where}: consumer: {config.deliver.consumer} has no options here; its keys are in [deliver]")
    if config.deliver.serializer and not config.deliver.is_plugin:
        raise BadConfig(f"{where}: deliver.serializer: {config.deliver.consumer} takes batches, not records")
    if config.serializer and not config.deliver.serializer:
        raise BadConfig(f"{where}: serializer: deliver.serializer names no serializer that has these options")


def _check_outbox(config: Config, where: str) -> None:
    if config.deliver.group_bytes_max * 4 > config.outbox.bytes_max:
        # Spark requests at most half of the outbox at once, and confirms it only when it plans the next batch.
        raise BadConfig(f"{where}: deliver.group_bytes_max: at most a quarter of outbox.bytes_max")
    if config.reader.hold_bytes * 2 > config.outbox.bytes_max:
        raise BadConfig(f"{where}: reader.hold_bytes: at most half of outbox.bytes_max")


def _check_standby(config: Config, where: str) -> None:
    if config.standby.lake and not config.standby.follow:
        raise BadConfig(f"{where}: standby.lake requires standby.follow = true")
    if not config.standby.follow:
        return
    if not config.markers.key_file:
        raise BadConfig(
            f"{where}: standby.follow: markers.key_file must name the key of the markers of the delivering capture",
            hint="create one key (openssl rand -hex 32), put it on every node, and set markers.key_file to its file",
        )
    if config.standby.lake and config.deliver.consumer != "outbox":
        raise BadConfig(f"{where}: standby.lake: a lake is filled from the outbox, not by {config.deliver.consumer}")
    # libpq is loaded here only: most programs that read a configuration never connect.
    if "," in import_module("tidemark.io.node.dsn").parse_dsn(config.capture.dsn).get("host", ""):
        raise BadConfig(
            f"{where}: standby.follow: capture.dsn names several hosts",
            hint="set the one node that this sidecar follows while it is a standby; a sidecar that always connects "
            "to the primary, by target_session_attrs, needs no standby.follow",
        )
