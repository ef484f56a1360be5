"""Changes of a table `orders`, which the recipes of the guide read; triggers keep an audit of them, the oracle."""

from tests.support.servers.postgres import Cluster

TABLES = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, customer int NOT NULL, total numeric(10,2) NOT NULL, placed_at timestamptz NOT NULL,
  note text);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE audit (
  number bigserial PRIMARY KEY, op text NOT NULL, id bigint, customer int, total numeric(10,2), placed_at timestamptz);
CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'DELETE' THEN NEW := OLD; END IF;
  INSERT INTO audit (op, id, customer, total, placed_at)
    VALUES (TG_OP, NEW.id, NEW.customer, NEW.total, NEW.placed_at);
  RETURN NULL;
END $$;
CREATE TRIGGER audited AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION note_change();
"""
CHANGES = (
    """INSERT INTO orders
       SELECT n, n % 7, n * 1.5, timestamptz '2026-03-01 00:00Z' + n * interval '6 minutes', 'note ' || n
       FROM generate_series(1, 200) n""",
    # Notes that are stored out of line.
    """INSERT INTO orders SELECT n, n % 5, 20, '2026-03-02 00:00Z', string_agg(md5(n || ' ' || m), '')
       FROM generate_series(201, 210) n, generate_series(1, 300) m GROUP BY n""",
    "UPDATE orders SET total = total + 10, customer = 8 WHERE id % 10 = 0",
    "UPDATE orders SET total = 0.25 WHERE id > 200",
    "DELETE FROM orders WHERE id % 9 = 0",
    "UPDATE orders SET id = id + 1000 WHERE id BETWEEN 20 AND 25",
    "INSERT INTO orders VALUES (9, 1, 900, '2026-03-02 01:30:00.000001Z', NULL)",
    """UPDATE orders SET total = 901 WHERE id = 9; UPDATE orders SET total = 902 WHERE id = 9;
       DELETE FROM orders WHERE id = 1""",
)
EMPTIED = (
    "INSERT INTO orders VALUES (3000, 1, 5, '2026-03-03 00:00Z', 'gone')",
    "TRUNCATE orders",
    "INSERT INTO orders SELECT n, n % 3, n, '2026-03-04 00:00Z', 'again' FROM generate_series(1, 40) n",
    "UPDATE orders SET total = total + 1 WHERE id < 10",
    "DELETE FROM orders WHERE id = 11",
)
COPIED = (
    """INSERT INTO orders VALUES (4000, 1, 5, '2026-03-05 00:00Z', 'kept'), (4001, 1, 6, '2026-03-05 00:00Z', 'gone')"""
)
"""Before a copy during which changes are missed."""
MISSED = (
    "ALTER TABLE orders SET UNLOGGED",
    "DELETE FROM orders WHERE id = 4001 OR id % 4 = 0 AND id < 4000",
    "UPDATE orders SET total = total + 7 WHERE id % 5 = 0",
    "ALTER TABLE orders SET LOGGED",
)
"""Changes that are not in WAL, and the rows after them."""


def create_orders(cluster: Cluster, database: str) -> None:
    """Create the tables."""
    with cluster.connect(database) as session:
        session.execute(TABLES)


def change_orders(cluster: Cluster, database: str, changes: tuple[str, ...] = CHANGES) -> None:
    """Make changes, each in a transaction of its own."""
    with cluster.connect(database) as session:
        for change in changes:
            with session.transaction():
                session.execute(change)
