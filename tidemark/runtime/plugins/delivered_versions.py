"""The versions of tables as the outbox has them, for commands that write versions from the catalogs into it."""

from collections.abc import Callable, Mapping

from tidemark.io.process.config import Config
from tidemark.model.lsn import Oid, TimelineId
from tidemark.model.mapping import TypeMapping
from tidemark.model.position import Epoch
from tidemark.model.relation import Relation
from tidemark.runtime.plugins.group_transforms import GroupTransforms
from tidemark.runtime.plugins.plugins import load_plugins

_NO_EPOCH = Epoch(TimelineId(0), 0)  # it belongs to rows, and there are none


def delivered_versions(
    config: Config, types: TypeMapping, databases: Mapping[Oid, str]
) -> Callable[[Oid, Relation | None], Relation | None]:
    """Return the function from a database and a version in the source to the one after the transforms."""
    if not config.transforms:
        return lambda _database, relation: relation
    plugins = load_plugins(config, "the configuration").transforms
    transforms = GroupTransforms(plugins, types, _NO_EPOCH, databases)
    return lambda database, relation: None if relation is None else transforms.version(database, relation)
