"""An engine with a rename, a mask and Debezium's JSON to a handler that discards, up to a number of rows: a program.

It prints one line of JSON as `scripts/bench/decoding/debezium_engine.py` does: the number of rows, and the arrival
times of the first and the last batch.
"""

import argparse
import json
import sys
import threading
import time

from tidemark import DebeziumJson, Engine, Mask, Order, Rename, SerializedBatch, every

SETTINGS = {"copy": {"enabled": False}}


def main() -> None:
    """Run the engine until it has handed over `--rows` changes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--state", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--order", required=True)
    parser.add_argument("--timeout", type=float, default=170)
    arguments = parser.parse_args()
    done = threading.Event()
    lock = threading.Lock()
    seen = {"rows": 0, "first_rows": 0, "first_s": 0.0, "last_s": 0.0}

    def handle(batch: SerializedBatch) -> None:
        size = len(batch)
        with lock:
            seen["first_rows"] = seen["first_rows"] or size
            seen["rows"] += size
            seen["last_s"] = time.perf_counter()
            seen["first_s"] = seen["first_s"] or seen["last_s"]
            if seen["rows"] >= arguments.rows:
                done.set()

    with Engine(
        arguments.dsn,
        state=arguments.state,
        tables=["public.narrow"],
        transforms=[Rename("public.narrow.account", "customer"), Mask("public.narrow.label", constant="************")],
        serializer=DebeziumJson(tombstones=False),
        handler=handle,
        workers=arguments.workers,
        order=Order(arguments.order),
        commit=every(seconds=1),
        settings=SETTINGS,
    ):
        came = done.wait(arguments.timeout)
    json.dump({**seen, "complete": came}, sys.stdout)
    print(flush=True)


if __name__ == "__main__":
    main()
