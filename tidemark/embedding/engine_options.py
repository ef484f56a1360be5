"""The arguments of an engine, checked before anything is opened, and the configuration that they stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tidemark.embedding.processor import Processor
from tidemark.engine.pool.commit_policy import CommitPolicy
from tidemark.engine.pool.dispatch import Order
from tidemark.engine.pool.stop_condition import StopWhen
from tidemark.io.node.dsn import parse_dsn
from tidemark.io.process.config import BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, WORKERS_MAX, Config
from tidemark.io.process.config_faults import sections_fault
from tidemark.io.process.config_loading import parse_config
from tidemark.model.arguments import (
    PLAIN_FUNCTION,
    WITHIN_S,
    Check,
    instance_of,
    is_plain_function,
    list_of,
    must_be,
    number,
    one_of,
    whole_number,
)
from tidemark.model.errors import ConfigError
from tidemark.model.poison import Poison
from tidemark.runtime.pool.pending_batch import GivenHandler, UnitHandler
from tidemark.runtime.pool.pool_kind import PoolKind
from tidemark.serializers.serializer import CORRECT_SETTINGS, Serializer
from tidemark.transforms.transform import Transform

RETRIES_MAX = 1000
WHERE = "tidemark.Engine"
PROCESSOR_METHODS = ("start", "process", "stop")
GivenSettings = Mapping[str, Mapping[str, object]]
_text = must_be(lambda given: isinstance(given, str), "text")
_patterns = list_of(_text, "a list of patterns", hint='write tables=["public.*"]')
_are_some = must_be(bool, "at least one pattern", hint="omit it for all tables")


def _some_patterns(name: str, given: object) -> None:
    _patterns(name, given)
    _are_some(name, given)


_transform = instance_of(
    Transform, "an instance of a transform", hint="give instances of Mask, Filter, ..., or OnBatch(function)"
)
CHECKS: Mapping[str, Check] = {
    **dict.fromkeys(
        ("handler", "change_handler", "on_event", "update_offsets", "on_loss", "on_rewind"), PLAIN_FUNCTION
    ),
    **dict.fromkeys(("on_signal", "on_state", "on_stop_step", "on_end"), PLAIN_FUNCTION),
    "tables": _some_patterns,
    "databases": _patterns,
    "dsn": _text,
    "state": must_be(lambda given: isinstance(given, str | Path) and str(given) != "", "the path of a folder"),
    "serializer": instance_of(Serializer, "an instance of a serializer", hint="for example DebeziumJson()"),
    "transforms": list_of(_transform, "a list of transforms", hint="write transforms=[Mask(...)]"),
    "workers": whole_number(0, WORKERS_MAX),
    "pool": one_of(PoolKind),
    "order": one_of(Order),
    "commit": instance_of(CommitPolicy, "ALWAYS, every(...) or a combination of these"),
    "retries": whole_number(0, RETRIES_MAX),
    "poison": one_of(Poison),
    "stop_when": instance_of(StopWhen, "StopWhen.after_changes(...), StopWhen.before(...) or StopWhen.after(...)"),
    "buffer_bytes": whole_number(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX),
    "start_within_s": number(lambda given: given > 0, "of seconds greater than 0"),
    "stop_within_s": WITHIN_S,
}
"""Of each argument but `processor` and `settings`, which have their own functions below."""
_OMIT = "omit it: an engine does not use it"
_GIVE = "give the argument {} of the engine"
REFUSED_SETTINGS: Mapping[str, str] = {
    **dict.fromkeys(("lake", "log", "markers", "metrics", "reader", "realtime", "server", "standby"), _OMIT),
    **dict.fromkeys(("consumer", "deliver.consumer", "deliver.jsonl_file"), _GIVE.format("handler")),
    **dict.fromkeys(("serializer", "deliver.serializer"), _GIVE.format("serializer")),
    "transforms": _GIVE.format("transforms"),
    "pool": _GIVE.format("workers, pool, order or buffer_bytes"),
    "capture.dsn": _GIVE.format("dsn"),
    "select.databases": _GIVE.format("databases"),
    "select.tables": _GIVE.format("tables"),
    "deliver.unconfirmed_bytes_max": _GIVE.format("buffer_bytes"),
    "poison.policy": _GIVE.format("poison"),
}
"""Sections and keys that an engine does not use, or that its arguments decide, with what to do instead."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine was asked to do."""

    state: Path
    workers: int
    order: Order
    commit: CommitPolicy
    retries: int
    start_within_s: float
    stop_within_s: float


def engine_config(
    dsn: str,
    databases: Sequence[str],
    tables: Sequence[str],
    *,
    buffer_bytes: int,
    poison: Poison,
    settings: GivenSettings,
) -> Config:
    """Return the configuration; `settings` has further values by section and key, as in tidemark.toml."""
    named = tuple(databases) or _database_of(dsn)
    own: Mapping[str, Mapping[str, object]] = {
        "capture": {"dsn": dsn},
        "select": {"databases": named, "tables": tuple(tables)},
        "deliver": {"unconfirmed_bytes_max": buffer_bytes},
        "poison": {"policy": poison.value},
    }
    sections = {*own, *settings}
    assigned = {section: {**settings.get(section, {}), **own.get(section, {})} for section in sections}
    return parse_config("", {}, where=WHERE, assigned=assigned)


def one_handler(handler: GivenHandler | None, change_handler: GivenHandler | None) -> UnitHandler:
    """Return the handler that was given; raise if there is none, or both."""
    given = [each for each in (handler, change_handler) if each is not None]
    if len(given) != 1:
        raise ConfigError(f"{WHERE}: give exactly one of handler, change_handler and processor")
    return cast("UnitHandler", given[0])  # it is called with the units that its own arguments chose


def serializer_settings(serializer: Serializer | None, settings: GivenSettings | None) -> GivenSettings:
    """Return the settings with those that the serializer needs, where the application has no other value.

    Raise `ConfigError` if either has another form, or the serializer needs what the configuration does not have.
    """
    given = {} if settings is None else settings
    _check_settings(given)
    if fault := sections_fault(given):
        raise ConfigError(f"{WHERE}: settings: {fault}")
    if serializer is None:
        return given
    of_serializer = f"{WHERE}: settings of {type(serializer).__name__}"
    if fault := sections_fault(serializer.settings):
        raise ConfigError(f"{of_serializer}: {fault}", hint=CORRECT_SETTINGS)
    parse_config("", {}, where=of_serializer, assigned=serializer.settings)
    return {
        section: {**serializer.settings.get(section, {}), **given.get(section, {})}
        for section in {*serializer.settings, *given}
    }


def checked_processor(processor: Processor | None, others: Mapping[str, bool]) -> Processor | None:
    """Return the processor; raise if it is none, or if others of the arguments decide what a processor decides.

    others: the names of these arguments, and whether they were given.
    """
    if processor is None:
        return None
    missing = [name for name in PROCESSOR_METHODS if not is_plain_function(getattr(processor, name, None))]
    if missing or isinstance(processor, type):
        raise ConfigError(
            f"{WHERE}: processor={processor!r} is not a processor",
            hint=f"give an object with the methods {', '.join(PROCESSOR_METHODS)} (tidemark.Processor)",
        )
    given = [name for name, is_given in others.items() if is_given]
    if given:
        raise ConfigError(f"{WHERE}: {given[0]} cannot be combined with a processor", hint="omit it")
    return processor


def check_pool(pool: PoolKind, workers: int) -> None:
    """Raise if the other arguments need threads."""
    if pool is PoolKind.PROCESSES and workers == 0:
        raise ConfigError(f"{WHERE}: workers=0: a serial engine has no worker processes")


def _database_of(dsn: str) -> tuple[str, ...]:
    name = parse_dsn(dsn).get("dbname")
    if name is None:
        raise ConfigError(f"{WHERE}: the DSN names no database", hint="add it to the DSN, or give databases=[...]")
    return (name,)


def _check_settings(given: GivenSettings) -> None:
    """Raise if there is a setting that an engine does not use, or that its arguments decide."""
    sections = given.items() if isinstance(given, Mapping) else ()
    keys = [f"{section}.{key}" for section, values in sections if isinstance(values, Mapping) for key in values]
    for name in (*(section for section, _values in sections), *keys):
        if name in REFUSED_SETTINGS:
            raise ConfigError(f"{WHERE}: settings: {name} is not a setting of an engine", hint=REFUSED_SETTINGS[name])
