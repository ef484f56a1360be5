"""The consumer that a state delivers to, and the plug-ins of both daemons: recorded and compared at each start.

A state belongs to one consumer: positions of one are wrong for another. Transforms, serializer and options must be the
same in both daemons while both run: after a failover, the other one would otherwise write what this one masks.
"""

from tidemark.io.host.logs import Log
from tidemark.io.process.config import BadConfig
from tidemark.io.state.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.model.mode import Role
from tidemark.wire.state import PLUGINS, PluginLog, PluginUse, PluginUses


class OtherConsumer(BadConfig):
    """A configuration with another consumer than the one that the state delivers to."""


class OtherPlugins(BadConfig):
    """A configuration with other plug-ins or options than the daemon that runs over the same state."""

    hint = "stop both daemons, and start both with the same configuration; nothing is lost meanwhile"


def record_plugins(store: StateStore, role: Role, uses: PluginUses, log: Log) -> None:
    """Record the plug-ins of a daemon that starts; raise `OtherConsumer`, `OtherPlugins`.

    Different versions are reported in the log.
    """
    known = store.plugins()
    if known is not None and known.consumer != uses.consumer.name:
        raise OtherConsumer(
            f"deliver.consumer is {uses.consumer.name}, and this state delivers to {known.consumer}",
            hint=f"restore deliver.consumer = {known.consumer!r}, or create another state for the other consumer with "
            "`cdcctl init`",
        )
    other = Role.ARCHIVER if role is Role.SIDECAR else Role.SIDECAR
    other_uses = known.uses.get(other.value) if known is not None else None
    if other_uses is not None and RoleLock.status(store.folder, other.value).is_locked:
        _compare(role, uses, other, other_uses, log)
    if known is None or known.uses.get(role.value) != uses:
        with store.transaction(None) as transaction:
            before = transaction.get(PLUGINS)
            others = before.uses if before is not None else {}
            transaction.put(PLUGINS, PluginLog(uses.consumer.name, {**others, role.value: uses}))


def _compare(role: Role, uses: PluginUses, other: Role, other_uses: PluginUses, log: Log) -> None:
    mine, theirs = uses.in_order, other_uses.in_order
    same = [(each.name, each.options) for each in mine] == [(each.name, each.options) for each in theirs]
    if not same:
        raise OtherPlugins(
            f"the configuration of the {role.value} has {_text(mine, theirs)}, and the {other.value}, which runs, has "
            f"{_text(theirs, mine)}"
        )
    for here, there in zip(mine, theirs, strict=True):
        if here.version != there.version:
            log.warning(
                "sidecar and archiver have different versions of a plug-in",
                plugin=here.name,
                versions={role.value: here.version, other.value: there.version},
                hint="install the same version for both, and restart the one with the older version",
            )


def _text(uses: tuple[PluginUse, ...], others: tuple[PluginUse, ...]) -> str:
    """Return the plug-ins with the fingerprints of options where only these differ."""
    names = {each.name for each in others}
    shown = [f"{each.name} (options {each.options or 'none'})" if each.name in names else each.name for each in uses]
    return ", ".join(shown)
