"""The database of a shop: a schema with rows, and clients that change it continuously, DDL included.

Every client changes only its own customers, so transactions overlap but never deadlock. Each transaction records its
changes in the journal, in the server's counts; `exactly_once` compares the change log with it.
"""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg.types.json import Jsonb

from tidemark.model.change import Op

SCHEMA = """
CREATE SCHEMA app;
CREATE TYPE app.order_status AS ENUM ('placed', 'paid', 'shipped', 'returned');
CREATE TABLE app.customers (
    id integer PRIMARY KEY, name text NOT NULL, email varchar(120), tags text[], profile jsonb,
    balance numeric(12,2) NOT NULL DEFAULT 0, score double precision, created timestamptz NOT NULL DEFAULT now());
CREATE TABLE app.orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer_id integer NOT NULL, status app.order_status NOT NULL,
    total numeric(12,2) NOT NULL, note text, placed_on date NOT NULL DEFAULT current_date);
CREATE TABLE app.order_lines (
    order_id bigint, line_no smallint, product uuid NOT NULL, quantity integer NOT NULL, price numeric(10,4) NOT NULL,
    PRIMARY KEY (order_id, line_no));
CREATE TABLE app.documents (id integer PRIMARY KEY, title text NOT NULL, body text, checksum bytea);
CREATE TABLE app.sessions (
    id uuid PRIMARY KEY, customer_id integer NOT NULL, address inet, started timestamp NOT NULL, length interval,
    active boolean NOT NULL DEFAULT true);
ALTER TABLE app.sessions REPLICA IDENTITY FULL;
CREATE TABLE app.journal (
    client integer, number integer, xid bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
    changes jsonb NOT NULL, PRIMARY KEY (client, number));
"""
EXISTING = """
INSERT INTO app.customers SELECT n, 'customer ' || n, 'c' || n || '@example.org', ARRAY['old', 'n' || n % 7],
    jsonb_build_object('n', n, 'odd', n % 2 = 1), n % 1000, n / 7.0, now() FROM generate_series(1, 5000) n;
INSERT INTO app.documents SELECT n, 'document ' || n, (SELECT string_agg(md5(n || '-' || i), '') FROM
    generate_series(1, 150) i), decode(md5(n::text), 'hex') FROM generate_series(1, 300) n;
INSERT INTO app.orders (customer_id, status, total) SELECT n % 5000 + 1, 'paid', n FROM generate_series(1, 8000) n;
INSERT INTO app.order_lines SELECT n, 1, gen_random_uuid(), n % 9 + 1, n / 3.0 FROM generate_series(1, 8000) n;
"""
JOURNAL = "app.journal"
TABLES = ("app.customers", "app.orders", "app.order_lines", "app.documents", "app.sessions", JOURNAL)
ADD_COLUMN = "ALTER TABLE app.customers ADD COLUMN tier text NOT NULL DEFAULT 'standard'"
CHANGE_TYPE = "ALTER TABLE app.order_lines ALTER COLUMN quantity TYPE bigint"
CUSTOMERS = 5000
DOCUMENTS = 300
CLIENTS = 3
BATCH_JOB = CLIENTS  # the journal's client number of the batch job
TRANSACTIONS_PER_S = 200  # of all clients together
SLOW_PER_S = 40  # while no reader reads the outbox
CHUNK_BODY = 600  # hashes in a document's body: 19 kB
CHUNK_DOCUMENTS = 50


def create(dsn: str) -> int:
    """Create the schema with its first rows; return the number of rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SCHEMA)
        connection.execute(EXISTING)
        return sum(count(connection, table) for table in TABLES)


def count(connection: psycopg.Connection, table: str) -> int:
    """Return the table's number of rows."""
    row = connection.execute(psycopg.sql.SQL("SELECT count(*) FROM {}").format(_identifier(table))).fetchone()
    return 0 if row is None else int(row[0])


def _identifier(table: str) -> psycopg.sql.Identifier:
    return psycopg.sql.Identifier(*table.split("."))


@dataclass
class DemoClients:
    """Clients that write until they are stopped, and the number of their transactions."""

    dsn: str
    per_s: float = SLOW_PER_S
    transactions: int = 0
    rolled_back: int = 0
    failure: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)
    _started: float = 0.0
    _count_from: int = 0

    def start(self) -> None:
        """Start the clients."""
        self._started = time.monotonic()
        for number in range(CLIENTS):
            thread = threading.Thread(target=self._guarded, args=(number,), name=f"client-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop the clients after the current transaction; raise the error that ended a client."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)
        if self.failure is not None:
            raise self.failure

    def pace(self, per_s: float) -> None:
        """Continue at this rate of all clients together."""
        self.per_s = per_s
        self._count_from = self.transactions
        self._started = time.monotonic()

    def rate(self) -> float:
        """Return transactions per second at the present target rate."""
        return (self.transactions - self._count_from) / max(time.monotonic() - self._started, 0.001)

    def _guarded(self, number: int) -> None:
        try:
            self._client(number)
        except psycopg.Error as error:
            self.failure = error

    def _client(self, number: int) -> None:
        choose = random.Random(number)
        with psycopg.connect(self.dsn) as connection:
            due = time.monotonic()
            attempt = 0
            while not self._stop.is_set():
                attempt += 1
                customer = choose.randrange(number, CUSTOMERS, CLIENTS) + 1
                committed = _run(Transaction(connection), choose, customer, (number, attempt))
                with self._lock:
                    self.transactions += 1
                    self.rolled_back += not committed
                due = max(due + CLIENTS / self.per_s, time.monotonic() - 1)  # after a lock, catch up at most one second
                self._stop.wait(max(due - time.monotonic(), 0))


class Transaction:
    """One transaction, and the number of changed rows by table and operation."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self._changes: Counter[str] = Counter()

    def change(self, table: str, op: Op, query: str, values: Sequence[object]) -> psycopg.Cursor:
        """Run a statement that changes rows of one table; count the rows."""
        cursor = self.connection.execute(query.encode(), values)
        self._changes[f"{table} {op.value}"] += cursor.rowcount
        return cursor

    def commit(self, client: int, number: int) -> None:
        """Write the counts into the journal, and commit."""
        changes = Jsonb(dict(+self._changes))
        insert = f"INSERT INTO {JOURNAL} (client, number, changes) VALUES (%s, %s, %s)"
        self.connection.execute(insert.encode(), (client, number, changes))
        self.connection.commit()


def rewrite_documents(connection: psycopg.Connection, number: int) -> None:
    """Rewrite some documents in one transaction, like a batch job: a megabyte of WAL."""
    transaction = Transaction(connection)
    query = (
        "UPDATE app.documents SET body = (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, %s))"
        " WHERE id %% %s = %s"
    )
    parts = DOCUMENTS // CHUNK_DOCUMENTS
    transaction.change("app.documents", Op.UPDATE, query, (CHUNK_BODY, parts, number % parts))
    transaction.commit(BATCH_JOB, number)


def _run(transaction: Transaction, choose: random.Random, customer: int, place: tuple[int, int]) -> bool:
    """Run one of the shop's transactions; return true if it was committed."""
    kind = choose.random()
    if kind < 0.45:
        _insert_order(transaction, choose, customer)
    elif kind < 0.65:
        transaction.change(
            "app.customers",
            Op.UPDATE,
            "UPDATE app.customers SET balance = balance + %s, score = random(), tags = tags || %s WHERE id = %s",
            (choose.randrange(100), [f"t{choose.randrange(9)}"] if kind < 0.5 else [], customer),
        )
    elif kind < 0.8:
        _session(transaction, choose, customer)
    elif kind < 0.9:
        _document(transaction, choose, customer % DOCUMENTS + 1)
    else:
        _return_order(transaction, customer)
    if choose.random() < 0.05:
        transaction.connection.rollback()
        return False
    transaction.commit(*place)
    return True


def _insert_order(transaction: Transaction, choose: random.Random, customer: int) -> None:
    total = choose.randrange(1, 100_000) / 100
    row = transaction.change(
        "app.orders",
        Op.INSERT,
        "INSERT INTO app.orders (customer_id, status, total, note) VALUES (%s, 'placed', %s, %s) RETURNING id",
        (customer, total, "urgent" if total > 900 else None),
    ).fetchone()
    assert row is not None
    for line in range(1, choose.randrange(2, 6)):
        product = uuid.UUID(int=choose.getrandbits(128))
        values = (row[0], line, product, choose.randrange(1, 20), total / line)
        insert = "INSERT INTO app.order_lines VALUES (%s, %s, %s, %s, %s)"
        if choose.random() < 0.2:
            transaction.connection.execute("SAVEPOINT line")
            transaction.connection.execute(insert, values)  # not counted: it is rolled back
            transaction.connection.execute("ROLLBACK TO SAVEPOINT line")
        transaction.change("app.order_lines", Op.INSERT, insert, values)
    profile = Jsonb({"last_order": row[0], "totals": [total, None, True]})
    update = "UPDATE app.customers SET profile = %s WHERE id = %s"
    transaction.change("app.customers", Op.UPDATE, update, (profile, customer))


def _session(transaction: Transaction, choose: random.Random, customer: int) -> None:
    transaction.change(
        "app.sessions",
        Op.INSERT,
        "INSERT INTO app.sessions VALUES (%s, %s, %s, localtimestamp, make_interval(secs => %s), true)",
        (uuid.UUID(int=choose.getrandbits(128)), customer, f"10.0.{customer % 250}.1", choose.randrange(5000)),
    )
    delete = "DELETE FROM app.sessions WHERE customer_id = %s AND NOT active"
    transaction.change("app.sessions", Op.DELETE, delete, (customer - 5 * CLIENTS,))
    update = "UPDATE app.sessions SET active = false WHERE customer_id = %s"
    transaction.change("app.sessions", Op.UPDATE, update, (customer,))


def _document(transaction: Transaction, choose: random.Random, document: int) -> None:
    query = "UPDATE app.documents SET title = title || '.' WHERE id = %s"
    values: tuple[int, ...] = (document,)
    if choose.random() < 0.5:  # otherwise the body is an unchanged TOASTed value
        query = (
            "UPDATE app.documents SET body = (SELECT string_agg(md5(random()::text), '')"
            " FROM generate_series(1, %s)) WHERE id = %s"
        )
        values = (choose.randrange(1, 300), document)
    transaction.change("app.documents", Op.UPDATE, query, values)


def _return_order(transaction: Transaction, customer: int) -> None:
    returned = transaction.change(
        "app.orders",
        Op.UPDATE,
        "UPDATE app.orders SET status = 'returned' WHERE id = (SELECT max(id) FROM app.orders WHERE customer_id = %s)"
        " RETURNING id",
        (customer,),
    ).fetchone()
    if returned is not None:
        delete = "DELETE FROM app.order_lines WHERE order_id = %s AND line_no > 1"
        transaction.change("app.order_lines", Op.DELETE, delete, returned)
