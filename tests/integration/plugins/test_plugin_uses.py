"""The plug-ins of both daemons on a real state: compared only with those of the process that runs."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.workloads.feeder import make_state
from tidemark.io.host.log_output import get_log
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.mode import Role
from tidemark.runtime.plugins.plugin_uses import OtherConsumer, OtherPlugins, record_plugins
from tidemark.wire.state.plugin_log import PluginLog, PluginUse, PluginUses
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import PLUGINS

OUTBOX = PluginUse("outbox", "", "")
PLAIN = PluginUses(OUTBOX)
MASKED = PluginUses(OUTBOX, transforms=(PluginUse("tidemark.transforms.masks:Mask", "1", "0123"),))
LOG = get_log("test")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    make_state(tmp_path / "state")
    with StateStore.open(StateFolder(tmp_path / "state")) as opened:
        yield opened


@pytest.fixture
def owners(store: StateStore) -> Iterator[dict[Role, Owner]]:
    """Both daemons have started, and have recorded nothing yet. Earlier processes have recorded plain plug-ins."""
    with ExitStack() as stack:
        locks = {role: stack.enter_context(RoleLock.acquire(store.folder, role.value)) for role in Role}
        earlier = {role.value: replace(PLAIN, owner=replace(lock.owner, pid=1)) for role, lock in locks.items()}
        with store.transaction(None) as transaction:
            transaction.put(PLUGINS, PluginLog(OUTBOX.name, earlier))
        yield {role: lock.owner for role, lock in locks.items()}


@pytest.mark.parametrize("first", list(Role))
def test_daemons_that_start_together_with_another_configuration_are_not_refused(
    store: StateStore, owners: dict[Role, Owner], first: Role
) -> None:
    (second,) = set(Role) - {first}
    record_plugins(store, owners[first], MASKED, LOG)
    record_plugins(store, owners[second], MASKED, LOG)
    assert store.plugins() == PluginLog(
        OUTBOX.name, {role.value: replace(MASKED, owner=owner) for role, owner in owners.items()}
    )


@pytest.mark.parametrize("first", list(Role))
@pytest.mark.parametrize("of_first", [PLAIN, MASKED])
def test_of_daemons_that_start_together_with_different_plugins_the_second_is_refused(
    store: StateStore, owners: dict[Role, Owner], first: Role, of_first: PluginUses
) -> None:
    (second,) = set(Role) - {first}
    record_plugins(store, owners[first], of_first, LOG)
    with pytest.raises(OtherPlugins, match=f"the {first.value}, which runs, has"):
        record_plugins(store, owners[second], MASKED if of_first is PLAIN else PLAIN, LOG)
    known = store.plugins()
    assert known is not None
    assert known.uses[first.value] == replace(of_first, owner=owners[first])
    assert known.uses[second.value].owner != owners[second], "a refused one records nothing"


def test_a_daemon_that_has_ended_is_not_compared(store: StateStore) -> None:
    with RoleLock.acquire(store.folder, Role.SIDECAR.value) as lock:
        record_plugins(store, lock.owner, PLAIN, LOG)
    with RoleLock.acquire(store.folder, Role.ARCHIVER.value) as lock:
        record_plugins(store, lock.owner, MASKED, LOG)
        with pytest.raises(OtherConsumer):
            record_plugins(store, lock.owner, PluginUses(PluginUse("null", "", "")), LOG)
