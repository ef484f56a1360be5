"""The consumer that a state delivers to, and the plug-ins of both daemons: recorded and compared at each start.

A state belongs to one consumer: positions of one are wrong for another. Transforms, serializer and options must be the
same in both daemons while both run: after a failover, the other one would otherwise write what this one masks.
"""

from dataclasses import replace

from tidemark.io.host.logs import Log
from tidemark.io.process.config import BadConfig
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.model.mode import Role
from tidemark.wire.state.plugin_log import PluginLog, PluginUse, PluginUses
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import PLUGINS


class OtherConsumer(BadConfig):
    """A configuration with another consumer than the one that the state delivers to."""


class OtherPlugins(BadConfig):
    """A configuration with other plug-ins or options than the daemon that runs over the same state."""

    hint = "stop both daemons, and start both with the same configuration; nothing is lost meanwhile"


def record_plugins(store: StateStore, owner: Owner, uses: PluginUses, log: Log) -> None:
    """Record the plug-ins of a daemon that starts, and has its role's lock; raise `OtherConsumer`, `OtherPlugins`.

    Different versions are reported in the log.
    """
    role = Role(owner.role)
    other = Role.ARCHIVER if role is Role.SIDECAR else Role.SIDECAR
    # Compared and written in one transaction: of two daemons that start together, the second one finds the first one's.
    with store.transaction(None) as transaction:
        known = transaction.get(PLUGINS) or PluginLog(uses.consumer.name, {})
        _check_consumer(known, uses)
        others = uses_of_running(store, known, other)
        if others is not None:
            _check_same(role, uses, other, others)
        recorded = replace(uses, owner=owner)
        transaction.put(PLUGINS, PluginLog(uses.consumer.name, {**known.uses, role.value: recorded}))
    if others is not None:
        _report_versions(role, uses, other, others, log)


def _check_consumer(known: PluginLog, uses: PluginUses) -> None:
    if known.consumer != uses.consumer.name:
        raise OtherConsumer(
            f"deliver.consumer is {uses.consumer.name}, and this state delivers to {known.consumer}",
            hint=f"restore deliver.consumer = {known.consumer!r}, or create another state for the other consumer with "
            "`cdcctl init`",
        )


def uses_of_running(store: StateStore, known: PluginLog, role: Role) -> PluginUses | None:
    """Return the plug-ins of a role's running process; None if none runs, or if it has not recorded them yet."""
    uses = known.uses.get(role.value)
    if uses is None or uses.owner is None:
        return None
    status = RoleLock.status(store.folder, role.value)
    return uses if status.is_locked and uses.owner == status.owner else None


def _check_same(role: Role, uses: PluginUses, other: Role, others: PluginUses) -> None:
    mine, theirs = uses.in_order, others.in_order
    if named_options(mine) != named_options(theirs):
        raise OtherPlugins(
            f"the configuration of the {role.value} has {text_beside(mine, theirs)}, "
            f"and the {other.value}, which runs, has {text_beside(theirs, mine)}"
        )


def _report_versions(role: Role, uses: PluginUses, other: Role, others: PluginUses, log: Log) -> None:
    for here, there in zip(uses.in_order, others.in_order, strict=True):
        if here.version != there.version:
            log.warning(
                "sidecar and archiver have different versions of a plug-in",
                plugin=here.name,
                versions={role.value: here.version, other.value: there.version},
                hint="install the same version for both, and restart the one with the older version",
            )


def named_options(uses: tuple[PluginUse, ...]) -> list[tuple[str, str]]:
    """Return what must be equal: names and options, in order; versions may differ."""
    return [(each.name, each.options) for each in uses]


def text_beside(uses: tuple[PluginUse, ...], others: tuple[PluginUse, ...]) -> str:
    """Return the plug-ins with the fingerprints of options where only these differ."""
    names = {each.name for each in others}
    shown = [f"{each.name} (options {each.options or 'none'})" if each.name in names else each.name for each in uses]
    return ", ".join(shown) or "none"
