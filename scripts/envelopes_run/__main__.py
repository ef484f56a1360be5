"""Makes records, lets Java read them, and compares the rows that it finds with the rows in the records."""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import psycopg

import tidemark
from scripts.bench.decoding.debezium_bench import CACHE, environment
from tests.support.samples.envelopes import RECORDED, EnvelopeRecord, fixed_records, text_of, unwrapped
from tests.support.samples.made_samples import TYPES_DDL
from tests.support.samples.type_samples import SAMPLES, SINCE
from tests.support.servers.postgres import Cluster, Session, new_cluster, sql

READER = Path(__file__).with_name("java_reader.py")
MAJOR = 15
READ_S = 300.0
NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


def main() -> int:
    """Return the exit status: 1 if a row differs or a record cannot be read."""
    parser = argparse.ArgumentParser(prog="scripts/envelopes")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name} again")
    record = parser.parse_args().record
    python = environment(CACHE)
    fixed = fixed_records()
    found = read(python, fixed)
    if record:
        lines = [json.dumps({**one, "read": row}, ensure_ascii=False) for one, row in zip(fixed, found, strict=True)]
        RECORDED.write_text("".join(f"{line}\n" for line in lines))
        print(f"{len(lines)} records in {RECORDED}")
    live = [*live_records()]
    different = [*differences(fixed, found), *differences(live, read(python, live))]
    for text in different:
        print(text)
    print(f"{len(fixed) + len(live)} records read, {len(different)} differences")
    return 1 if different or not live else 0


def read(python: Path, records: Sequence[EnvelopeRecord]) -> list[dict[str, object]]:
    """Return what Java makes of the records."""
    given = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)
    done = subprocess.run([python, READER], input=given, capture_output=True, text=True, timeout=READ_S, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def differences(records: Sequence[EnvelopeRecord], found: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Yield each record that Java read otherwise than it is written."""
    for one, read_one in zip(records, found, strict=True):
        if "error" in read_one:
            yield f"{read_one['error']}: {one['value']}"
        elif not is_equal(read_one["row"], expected := unwrapped(one)):
            yield f"{read_one['row']} instead of {expected}"


def is_equal(found: object, written: object) -> bool:
    """Compare two JSON values. NB: `JsonConverter` reads as 0 what it writes itself for NaN and infinities."""
    if isinstance(found, dict) and isinstance(written, dict):
        return found.keys() == written.keys() and all(is_equal(found[name], written[name]) for name in found)
    if isinstance(found, list) and isinstance(written, list):
        return len(found) == len(written) and all(map(is_equal, found, written))
    if isinstance(found, float):
        with np.errstate(over="ignore"):  # Java prints other digits for the same real
            same = np.float32(found) == np.float32(float(str(written)))
        return found == 0 if written in NO_NUMBERS else bool(same)
    return type(found) is type(written) and found == written


def live_records() -> Iterator[EnvelopeRecord]:
    """Yield the records of a table for each type, from a server."""
    types = [declaration for declaration in SAMPLES if SINCE.get(declaration, 0) <= MAJOR]
    with new_cluster(MAJOR) as cluster, tempfile.TemporaryDirectory() as folder:
        yield from captured(cluster, Path(folder), types)


def captured(cluster: Cluster, folder: Path, types: Sequence[str]) -> Iterator[EnvelopeRecord]:
    """Create, capture and fill the tables."""
    found: list[EnvelopeRecord] = []
    with cluster.connect("postgres") as session:
        for statement in TYPES_DDL:
            sql(session, statement)
        usable = [(number, name) for number, name in enumerate(types) if create(session, number, name)]
        sql(session, "CREATE TABLE finish (id int PRIMARY KEY)")

        def handle(change: tidemark.SerializedChange) -> None:
            if change.table == "public.finish":
                engine.stop()
            else:
                found.append({"key": text_of(change.key), "value": text_of(change.value)})

        engine = tidemark.Engine(
            cluster.dsn("postgres"),
            state=folder / "state",
            change_handler=handle,
            serializer=tidemark.DebeziumJson(schemas=True),
        )
        with engine:
            for number, name in usable:
                with session.cursor().copy(f"COPY t{number} (v) FROM STDIN".encode()) as copy:
                    for value in SAMPLES[name]:
                        copy.write_row([value])
                sql(session, f"UPDATE t{number} SET v = NULL WHERE id = 1")
                sql(session, f"DELETE FROM t{number} WHERE id = 2")
            sql(session, "INSERT INTO finish VALUES (1)")
            engine.wait()
    yield from found


def create(session: Session, number: int, declaration: str) -> bool:
    """Create the table of a type; return whether the server has the type."""
    try:
        sql(session, f"CREATE TABLE t{number} (id serial PRIMARY KEY, v {declaration})")
    except psycopg.errors.UndefinedObject:
        return False
    sql(session, f"ALTER TABLE t{number} REPLICA IDENTITY FULL")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
