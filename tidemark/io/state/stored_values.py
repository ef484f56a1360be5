"""The values of a state inside one LMDB transaction, by key.

Positions never move back on a timeline: `Key.encode_over` checks each value that replaces another. Each key has a
policy for damage (`tidemark.wire.state.state_keys`).
"""

from collections.abc import Iterator
from typing import TypeVar

from tidemark.io.state.environment import Environment, LmdbDatabase, LmdbTransaction
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import Scope, named
from tidemark.wire.state.key import DamagePolicy, Key
from tidemark.wire.state.values import Identity

ValueT = TypeVar("ValueT")


class StoredValues:
    """The named values, and those of LMDB's other databases."""

    def __init__(
        self, environment: Environment, transaction: LmdbTransaction, scope: Scope, identity: Identity
    ) -> None:
        self._environment = environment
        self._transaction = transaction
        self._scope = scope
        self.identity = identity
        self._values = environment.database("state")

    def get(self, key: Key[ValueT]) -> ValueT | None:
        """Return a named value, None if there is none."""
        stored = self._transaction.get(named(self._scope, key.name), db=self._values)
        return None if stored is None else key.decode(stored)

    def get_or_forget(self, key: Key[ValueT]) -> ValueT | None:
        """Return a named value whose damage is no reason to stop; None if there is none, or it is damaged."""
        try:
            return self.get(key)
        except DamagedValue:
            if key.policy is not DamagePolicy.FORGET:
                raise
            return None

    def put(self, key: Key[ValueT], value: ValueT) -> None:
        """Store a named value; raise `InternalError` if it is a position, an epoch or a count that would move back.

        A rewind and a promotion continue on a later timeline, whose positions are greater; `init` finds no value.
        """
        self.replace_value(self._values, key.name, key, value)

    def drop(self, key: Key[ValueT]) -> None:
        """Delete a named value."""
        self._transaction.delete(named(self._scope, key.name), db=self._values)

    def stored(self, name: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys without their scope, and values, of one of LMDB's databases, in order; `start`: of the keys."""
        if not self._environment.has_database(name):
            return
        scope, prefix = len(self._scope.prefix), self._scope.prefix + start
        with self._transaction.cursor(self._environment.database(name)) as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                yield cursor.key()[scope:], cursor.value()
                more = cursor.next()

    def store(self, name: str, key: bytes, value: bytes | None) -> None:
        """Store a value in one of LMDB's databases, or delete it: for modules with their own form of values."""
        database = self._environment.database(name)
        if value is None:
            self._transaction.delete(self._scope.prefix + key, db=database)
        else:
            self._transaction.put(self._scope.prefix + key, value, db=database)

    def replace_value(self, database: LmdbDatabase, name: str, key: Key[ValueT], value: ValueT) -> None:
        """Store a value in one of LMDB's databases; raise `InternalError` if it would move back."""
        stored_name = named(self._scope, name)
        replaced = self._transaction.get(stored_name, db=database) if key.moves_back is not None else None
        self._transaction.put(stored_name, key.encode_over(replaced, value), db=database)

    def named_values(self, database: str) -> Iterator[tuple[str, bytes]]:
        """Yield names without their scope, and stored values, of one of LMDB's databases."""
        return ((key.decode(), value) for key, value in self.stored(database))
