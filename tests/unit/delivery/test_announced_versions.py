"""The versions of tables that a consumer is told of."""

from dataclasses import replace

from tests.support.forged import groups
from tidemark.model.change import ChangeGroup, SchemaChange, SchemaEvent
from tidemark.runtime.delivery.announced_versions import AnnouncedVersions
from tidemark.runtime.delivery.consumers import NullConsumer


class SchemaRecorder(NullConsumer):
    """Records the events of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[SchemaChange, str]] = []

    def on_schema(self, event: SchemaEvent) -> None:
        described = event.after or event.before
        assert described is not None
        self.events.append((event.change, described.name))


def dropped(commit_lsn: int, name: str, oid: int) -> ChangeGroup:
    event = groups.schema_event(commit_lsn, groups.relation(name, oid))
    return groups.group(commit_lsn, [replace(event, change=SchemaChange.DROP, before=event.after, after=None)])


def test_nothing_is_kept_of_a_dropped_table() -> None:
    recorder = SchemaRecorder()
    versions = AnnouncedVersions(recorder)
    account = groups.relation("account", 16_385)
    for commit_lsn in (104, 112):
        versions.announce(groups.insert(commit_lsn, account, None))
    versions.announce(dropped(120, "account", 16_385))
    versions.announce(groups.insert(128, account, None))
    create, drop = (SchemaChange.CREATE, "account"), (SchemaChange.DROP, "account")
    assert recorder.events == [create, drop, create]
