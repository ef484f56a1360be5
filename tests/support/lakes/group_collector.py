"""Changes of a database in groups, as they are delivered, and as JSON lines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.oracles.oracle import FENCE, OurSide, emit_fence
from tests.support.processes.json_lines import lines_in
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.render.jsonl import JsonLines
from tidemark.decode.transactions.decoder import Decoded
from tidemark.engine.selection import Selection
from tidemark.model.change import ChangeGroup, LogicalMessage
from tidemark.wire.control import Json


@dataclass
class GroupCollector(OurSide):
    """Tidemark's decoder of a database; collects the changes of selected tables in groups."""

    selection: Selection = field(default_factory=Selection)
    rows_max: int = 65536

    def __post_init__(self) -> None:
        super().__post_init__()
        self._groups: list[ChangeGroup] = []
        self._builder = GroupBuilder(
            {oid: mirror.dialect for oid, mirror in self.seed.mirrors.items()},
            selected=self.selection.selects,
            root_of=self.selection.root_of,
            excluded=self.selection.excluded_origins(),
            selects_message=self.selection.selects_message,
            rows_max=self.rows_max,
        )

    def receive(self, decoded: Decoded) -> None:
        """Collect decoded changes; remember fences, which are in no group."""
        if isinstance(decoded, LogicalMessage):
            self._groups += self._builder.add_message(decoded, self.changes.decoding.decoder.restart_lsn)
            return
        for item in decoded.items():
            if isinstance(item, LogicalMessage) and item.prefix == FENCE:
                self.fences.add(item.content.decode())
        self._groups += self._builder.add_transaction(decoded)

    def catch_up(self) -> list[ChangeGroup]:
        """Read up to now; return the groups since the last call."""
        self.read_until(emit_fence(self.cluster, self.databases[0]))
        last = self._builder.flush()
        groups, self._groups = [*self._groups, *([last] if last is not None else [])], []
        return groups

    def lines_to_now(self) -> list[Mapping[str, Json]]:
        """Read up to now; return the items since the last call as JSON lines, without fences."""
        printed = JsonLines(self.seed.databases)
        lines = [json.loads(line) for group in self.catch_up() for line in lines_in(printed.lines(group))]
        return [line for line in lines if line.get("prefix") != FENCE]
