"""Refuses to read the outbox of a state that delivers to another consumer: it stays empty."""

from tidemark.io.state.opened_state import OpenedState
from tidemark.model.errors import ConfigError
from tidemark.wire.keys import named
from tidemark.wire.state.plugin_log import OUTBOX
from tidemark.wire.state.state_keys import PLUGINS


class OutboxUnused(ConfigError):
    """A state whose daemons, or engine, do not deliver to the outbox."""

    hint = (
        'with deliver.consumer = "outbox", the default, changes go to the outbox: create another state with cdcctl init'
    )


def check_is_used(opened: OpenedState) -> None:
    """Raise `OutboxUnused` if changes are delivered to another consumer; before the first start nothing is known."""
    with opened.environment.read() as transaction:
        stored = transaction.get(named(opened.scope, PLUGINS.name), db=opened.environment.database("state"))
    consumer = OUTBOX if stored is None else PLUGINS.decode(stored).consumer
    if consumer != OUTBOX:
        raise OutboxUnused(f"the state {opened.folder.root} delivers to {consumer}, and nothing to its outbox")
