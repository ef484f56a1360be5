"""The modules that a program imports to decode an archive: imports take most of the time of a short run."""

import subprocess
import sys

PROGRAM = """
import sys

import tidemark_ctl.actions.decode
from tests.support.forged.forged_records import Wal, packed_row
from tests.support.forged.groups import DATABASE, relation
from tidemark.decode.types.codec import Dialect
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.model.change import ChangeBatch
from tidemark.wire.state.history_index import HistoryIndex
from tidemark.wire.state.state_keys import HISTORY

stream = Wal(relation())
stream.insert(701, 16385, packed_row(1))
stream.commit(701)
grouper = GroupBuilder({DATABASE: Dialect()})
assert not list(grouper.add_transaction(stream.committed[0]))
assert isinstance(grouper.flush().items[0], ChangeBatch)
assert HISTORY.decode(HISTORY.encode(HistoryIndex())) == HistoryIndex()
print(*sorted(sys.modules.keys() & set(sys.argv[1:])))
"""
# Modules that only a node, a configuration, a daemon, terminal output, or rare types need.
NOT_LOADED = ("asyncio", "prometheus_client", "psycopg", "pyarrow.compute", "rich", "ssl", "structlog")


def loaded(*names: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, *names]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()


def test_decoding_an_archive_loads_no_module_of_other_commands() -> None:
    assert loaded(*NOT_LOADED, "pyarrow") == ["pyarrow"]
