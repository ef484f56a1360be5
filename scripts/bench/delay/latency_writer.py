"""Commits one-row INSERTs at a rate; stamps each row before the INSERT and records when its commit returns.

    python -m scripts.bench.delay.latency_writer DSN TRIAL FIRST STEP COUNT INTERVAL_NS

Prints "ready" when it is connected, starts at the time (ns, monotonic clock) that it then reads from standard input,
and ends with a line of JSON: row numbers, stamps and return times. A late commit does not shift the schedule of the
following ones.
"""

import json
import sys
import time

import psycopg

STATEMENT = "INSERT INTO stamps VALUES (%s, %s, %s, %s)"
FILLER = "x" * 80
STATEMENT_TIMEOUT_MS = 60_000


def main() -> None:
    """Write one trial's rows."""
    dsn, *numbers = sys.argv[1:]
    trial, first, step, count, interval_ns = map(int, numbers)
    stamps, returns = [], []
    rows = list(range(first, first + step * count, step))
    with psycopg.connect(dsn, autocommit=True, options=f"-c statement_timeout={STATEMENT_TIMEOUT_MS}") as session:
        cursor = session.cursor()
        print("ready", flush=True)
        due_ns = int(sys.stdin.readline())
        for row in rows:
            early_ns = due_ns - time.monotonic_ns()
            if early_ns > 0:
                time.sleep(early_ns / 1e9)
            stamp_ns = time.monotonic_ns()
            cursor.execute(STATEMENT, (trial, row, stamp_ns, FILLER), prepare=True)
            returns.append(time.monotonic_ns())
            stamps.append(stamp_ns)
            due_ns += interval_ns
    print(json.dumps({"rows": rows, "stamps_ns": stamps, "returns_ns": returns}), flush=True)


if __name__ == "__main__":
    main()
