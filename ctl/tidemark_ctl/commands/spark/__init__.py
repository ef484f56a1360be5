"""`cdcctl spark`: the pipeline from the outbox to the lake, a separate program."""

import click

from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "accept-break": Entry(
        "spark.accept_break", "Continue diverged logs of logical messages, with a recorded break.", "accept"
    ),
    "prepare": Entry(
        "spark.prepare",
        "Create an archive of Spark's classes in STATE: Spark's JVM then starts in half the CPU time.",
        "prepare_spark",
    ),
    "run": Entry(
        "spark.run",
        "Run the pipeline: change log and replica of each captured table, as Delta tables under LAKE.",
        "run_spark",
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def spark() -> None:
    """Write changes to tables with Spark."""
