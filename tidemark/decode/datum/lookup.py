"""A small hash table of integers for the loops over records: key to value, 0 for an absent key.

Open addressing, at most half full. A removed key leaves no tombstone, so a table of changing xids grows only with the
largest number of xids in it at the same time.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""

from __future__ import annotations

from array import array

SLOTS_MIN = 64  # a power of two


class IntegerMap:
    """Keys and values, in two arrays."""

    def __init__(self) -> None:
        self.slots = SLOTS_MIN
        self.used = 0
        self.keys = array("Q", bytes(8 * self.slots))
        self.values = array("q", bytes(8 * self.slots))
        self.latest_key = 0  # of the last lookup: consecutive records mostly have the same key
        self.latest_value = 0

    def put(self, key: int, value: int) -> None:
        """Set the value of `key`, which is not 0; the value 0 removes it."""
        if not self.has_space():
            self.grow()
        self.enter(key, value)

    def has_space(self) -> int:
        """Return whether `enter` can be called."""
        return 1 if 2 * self.used < self.slots else 0

    def enter(self, key: int, value: int) -> int:
        """Set the value of `key` without enlarging the table."""
        slot = self.find(key)
        self.latest_key = 0
        if value == 0:
            return self.forget(slot)
        if self.keys[slot] == 0:
            self.keys[slot] = key
            self.used += 1
        self.values[slot] = value
        return 0

    def get(self, key: int) -> int:
        """Return the value of `key`."""
        if key != self.latest_key or key == 0:
            self.latest_value = self.values[self.find(key)]
            self.latest_key = key
        return self.latest_value

    def home(self, key: int) -> int:
        """Return the slot where the search for `key` begins."""
        low = key & 0x7FFFFFFF
        high = key >> 31
        return (low * 40503 ^ high * 2654435 ^ low >> 12) & (self.slots - 1)

    def find(self, key: int) -> int:
        """Return the slot of `key`, or the empty one where it belongs."""
        slot = self.home(key)
        while self.keys[slot] != 0 and self.keys[slot] != key:
            slot = slot + 1 & (self.slots - 1)
        return slot

    def forget(self, slot: int) -> int:
        """Empty a slot, and move up the keys whose search would end there."""
        if self.keys[slot] == 0:
            return 0
        last = self.slots - 1
        gap = slot
        slot = slot + 1 & last
        while self.keys[slot] != 0:
            if slot - self.home(self.keys[slot]) & last >= slot - gap & last:
                self.keys[gap] = self.keys[slot]
                self.values[gap] = self.values[slot]
                gap = slot
            slot = slot + 1 & last
        self.keys[gap] = 0
        self.values[gap] = 0
        self.used -= 1
        return 0

    def grow(self) -> None:
        """Enlarge the table."""
        keys, values, count = self.keys, self.values, self.slots
        self.slots = 2 * count
        self.keys = array("Q", bytes(8 * self.slots))
        self.values = array("q", bytes(8 * self.slots))
        self.used = 0
        for slot in range(count):
            if keys[slot] != 0:
                self.enter(keys[slot], values[slot])
