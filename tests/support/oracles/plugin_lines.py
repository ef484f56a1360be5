"""Our output in the format of test_decoding, line by line; a value in a line may contain newlines."""

from collections.abc import Callable, Collection, Iterator, Mapping

from tidemark.decode.render.test_decoding import TestDecodingRenderer
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.types.codec import Dialect
from tidemark.model.change import LogicalMessage
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation

END = b"\0"  # no value contains it


class PluginLines:
    """Prints like `decode --format test_decoding`."""

    def __init__(
        self,
        major: int,
        dialects: Mapping[Oid, Dialect],
        hidden_prefixes: Collection[str] = (),
        selected: Callable[[Relation], bool] = lambda _: True,
    ) -> None:
        self._renderer = TestDecodingRenderer(major, dialects, hidden_prefixes, selected, end=END)

    def shows(self, message: LogicalMessage) -> bool:
        return self._renderer.shows(message)

    def message(self, message: LogicalMessage) -> str:
        (line,) = lines_in(self._renderer.message(message))
        return line

    def of(self, decoded: CommittedRun | CommittedTransaction) -> Iterator[str]:
        """Yield the lines of one or more transactions."""
        if isinstance(decoded, CommittedRun):
            blocks = self._renderer.run(decoded)
        else:
            blocks = self._renderer.transaction(decoded)
        for block in blocks:
            yield from lines_in(block)


def lines_in(block: bytes | memoryview) -> list[str]:
    *lines, rest = bytes(block).split(END)
    assert rest == b""
    return [line.decode("utf-8", "surrogateescape") for line in lines]
