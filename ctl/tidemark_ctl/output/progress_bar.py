"""A progress bar for decoding on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tidemark.model.lsn import Lsn, format_lsn


@contextmanager
def shown(start: Lsn, end: Lsn | None) -> Iterator[Callable[[Lsn], None]]:
    """Show the bar; yield the function that updates it. Without a known end it shows only the LSN."""
    columns = (TextColumn("decoding {task.fields[at]}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        total = None if end is None else max(end - start, 1)
        task = progress.add_task("decoding", total=total, at=format_lsn(start))
        yield lambda lsn: progress.update(task, completed=lsn - start, at=format_lsn(lsn))
