"""The final report: the timeline of modes, the lags, the change log, and source and lake compared."""

import json

from rich.box import SIMPLE
from rich.table import Table

from scripts.demo_run.configuration import SWITCH_S
from scripts.demo_run.demonstration import Demonstration
from scripts.demo_run.exactly_once import judge, read_journal, read_log
from scripts.demo_run.lag import DestinationLags, During, quantile
from scripts.demo_run.processes import run
from tidemark.model.mode import Stage

COMPARE = "tidemark.pipeline.lake.compare"
SETTLE_S_MAX = 90  # for the lake to catch up after the workload
US_PER_S = 1_000_000


def report(demonstration: Demonstration) -> bool:
    """Print everything; return true if there is no error."""
    compared = _compare(demonstration)
    _timeline(demonstration)
    _lags(demonstration)
    once = _log(demonstration)
    return once and compared


def _compare(demonstration: Demonstration) -> bool:
    """Compare every table with its replica; return true if all are identical."""
    where = (
        "--dsn",
        demonstration.server.dsn(),
        "--state",
        str(demonstration.state),
        "--lake",
        str(demonstration.lake),
    )
    compared = json.loads(run(COMPARE, *where, "--wait-s", str(SETTLE_S_MAX), "--json", fine=(0, 1)).stdout)
    table = _table(f"source and lake at {compared['lsn']}", "table", "rows>", "replica rows>", "events>", "content")
    for one in compared["tables"]:
        verdict = "identical" if one["identical"] else "DIFFERENT"
        counts = (one["source_rows"], one["replica_rows"], one["events"])
        table.add_row(one["table"], *(f"{count:,}" for count in counts), verdict)
    demonstration.console.print(table)
    return bool(compared["tables"]) and all(one["identical"] for one in compared["tables"])


def _timeline(demonstration: Demonstration) -> None:
    """Print the timeline: deliverer, time and reason, and the operations in between."""
    switches = demonstration.store.view().switches.kept
    rows = [(each.at_us, _named(each.before), _named(each.after), each.reason) for each in switches]
    rows += [(at_us, "", "", text) for at_us, text in demonstration.reported]
    table = _table("timeline of modes", "second>", "from", "to", "reason, or what was done")
    for at_us, before, after, text in sorted(rows):
        style = None if after else "dim"
        table.add_row(f"{(at_us - demonstration.began_us) / US_PER_S:.1f}", before, after, text, style=style)
    demonstration.console.print(table)


def _named(stage: Stage) -> str:
    """Return the mode, with the transition in progress."""
    return stage.mode.value if stage.value == stage.mode.value else f"{stage.mode.value} ({stage.value})"


def _lags(demonstration: Demonstration) -> None:
    """Print the lags of commits, by deliverer."""
    lag = demonstration.lag
    title = f"seconds from commit to visible (segments of 1 MB, switched every {SWITCH_S} s in archive mode)"
    table = _table(title, "mode", "samples>", "outbox p50>", "p99>", "lake p50>", "p99>")
    for during in During:
        samples = len(lag.outbox.lags_s[during])
        table.add_row(during.value, f"{samples:,}", *_quantiles(lag.outbox, during), *_quantiles(lag.lake, during))
    demonstration.console.print(table)


def _quantiles(arrivals: DestinationLags, during: During) -> tuple[str, str]:
    lags = arrivals.lags_s[during]
    return (f"{quantile(lags, 0.5):.2f}", f"{quantile(lags, 0.99):.2f}") if lags else ("-", "-")


def _log(demonstration: Demonstration) -> bool:
    """Compare the change log with the journal; return true if each change is there exactly once."""
    log, snapshots = read_log(demonstration.store.view(), demonstration.lake)
    found = judge(read_journal(demonstration.server.dsn()), snapshots, log)
    demonstration.print_line(
        f"change log: {found.changes:,} changes of {found.transactions:,} committed transactions: "
        f"{'each exactly once' if found.is_right else 'WRONG'}\n"
        f"  {found.lost} lost, {found.doubled} doubled, {found.duplicate_positions} duplicate positions, "
        f"{found.numbers_wrong} journal numbers wrong\n"
        f"  beside them {log.copied:,} rows of the first copy and {log.rewritten:,} rewritten by DDL; "
        f"nothing of {demonstration.work.rolled_back:,} transactions that were rolled back"
    )
    return found.is_right


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for heading in headings:
        table.add_column(heading.removesuffix(">"), justify="right" if heading.endswith(">") else "left")
    return table
