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
from tidemark.io.process.config import WORKERS_MAX, Config
from tidemark.io.process.config_faults import sections_fault
from tidemark.io.process.config_loading import parse_config
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

    def __post_init__(self) -> None:
        _check("workers", self.workers, 0, WORKERS_MAX)
        _check("retries", self.retries, 0, RETRIES_MAX)
        if not isinstance(self.order, Order):
            raise ConfigError(f"{WHERE}: order={self.order!r}: must be one of {', '.join(map(str, Order))}")
        if not isinstance(self.commit, CommitPolicy):
            raise ConfigError(f"{WHERE}: commit={self.commit!r}: must be ALWAYS, every(...) or a combination of these")
        if not self.start_within_s > 0:
            raise ConfigError(f"{WHERE}: start_within_s={self.start_within_s}: must be greater than 0")
        if not self.stop_within_s >= 0:
            raise ConfigError(f"{WHERE}: stop_within_s={self.stop_within_s}: must be 0 or greater")


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
    if isinstance(tables, str) or isinstance(databases, str):
        raise ConfigError(f"{WHERE}: tables and databases are lists of patterns", hint='write tables=["public.*"]')
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
    given = settings or {}
    if fault := sections_fault(given):
        raise ConfigError(f"{WHERE}: settings: {fault}")
    if serializer is None:
        return given
    if not isinstance(serializer, Serializer):
        raise ConfigError(f"{WHERE}: serializer is {type(serializer).__name__}", hint="for example DebeziumJson()")
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
    missing = [name for name in PROCESSOR_METHODS if not callable(getattr(processor, name, None))]
    if missing or isinstance(processor, type):
        raise ConfigError(
            f"{WHERE}: processor={processor!r} is not a processor",
            hint=f"give an object with the methods {', '.join(PROCESSOR_METHODS)} (tidemark.Processor)",
        )
    given = [name for name, is_given in others.items() if is_given]
    if given:
        raise ConfigError(f"{WHERE}: {given[0]} cannot be combined with a processor", hint="omit it")
    return processor


def checked_poison(poison: Poison) -> Poison:
    """Return the policy; raise if it is none."""
    if not isinstance(poison, Poison):
        raise ConfigError(f"{WHERE}: poison={poison!r}: must be one of {', '.join(map(str, Poison))}")
    return poison


def checked_pool(pool: PoolKind, workers: int) -> PoolKind:
    """Return what the workers are; raise if it is nothing, or if the other arguments need threads."""
    if not isinstance(pool, PoolKind):
        raise ConfigError(f"{WHERE}: pool={pool!r}: must be one of {', '.join(map(str, PoolKind))}")
    if pool is PoolKind.PROCESSES and workers == 0:
        raise ConfigError(f"{WHERE}: workers=0: a serial engine has no worker processes")
    return pool


def checked_stop_condition(condition: StopWhen | None) -> StopWhen | None:
    """Return the condition to stop; raise if it is none."""
    if condition is not None and not isinstance(condition, StopWhen):
        raise ConfigError(
            f"{WHERE}: stop_when={condition!r}: must be StopWhen.after_changes(...), StopWhen.before(...) or "
            "StopWhen.after(...)"
        )
    return condition


def checked_transforms(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Return the transforms; raise if one of them is none."""
    for number, each in enumerate(transforms, 1):
        if not isinstance(each, Transform):
            raise ConfigError(
                f"{WHERE}: transforms: number {number} is {type(each).__name__}",
                hint="give instances of Mask, Filter, ..., or OnBatch(function)",
            )
    return tuple(transforms)


def _database_of(dsn: str) -> tuple[str, ...]:
    name = parse_dsn(dsn).get("dbname")
    if name is None:
        raise ConfigError(f"{WHERE}: the DSN names no database", hint="add it to the DSN, or give databases=[...]")
    return (name,)


def _check(name: str, given: int, least: int, most: int) -> None:
    if not least <= given <= most:
        raise ConfigError(f"{WHERE}: {name}={given}: must be from {least} to {most}")
