"""`inet` and `cidr` (`network.c`, `inet_net_ntop.c`, PG 16), `macaddr` and `macaddr8`."""

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import TextCodec

ADDRESS_BYTES = {2: 4, 3: 16}  # by family: PGSQL_AF_INET, PGSQL_AF_INET6
IPV6_WORDS = 8
IPV4_MAPPED = 0xFFFF


def ipv6_text(address: bytes) -> str:
    """Return an IPv6 address, with the longest run of at least two zero words shortened, and embedded IPv4 dotted.

    NB: Python's `ipaddress` dots only IPv4-mapped addresses; PostgreSQL dots IPv4-compatible ones too.
    """
    words = [address[at] << 8 | address[at + 1] for at in range(0, IPV6_WORDS * 2, 2)]
    run_at, run = _longest_zero_run(words)
    if run < 2:
        return ":".join(f"{word:x}" for word in words)
    embedded = run_at == 0 and (run == 6 or (run == 5 and words[5] == IPV4_MAPPED))
    head = ":".join(f"{word:x}" for word in words[:run_at])
    if embedded:
        tail = [f"{word:x}" for word in words[run:6]] + [_dotted(address[12:])]
    else:
        tail = [f"{word:x}" for word in words[run_at + run :]]
    return f"{head}::{':'.join(tail)}"


def _longest_zero_run(words: list[int]) -> tuple[int, int]:
    """Return (start, length) of the first longest run of zeros."""
    best = (0, 0)
    start = 0
    for at, word in enumerate(words):
        if word:
            start = at + 1
        elif at + 1 - start > best[1]:
            best = (start, at + 1 - start)
    return best


def _dotted(address: bytes) -> str:
    return ".".join(map(str, address))


class InetCodec(TextCodec):
    """Family, bits, address; `cidr` always prints the bits, `inet` only if the network is not a single host."""

    def __init__(self, *, always_bits: bool) -> None:
        self._always_bits = always_bits

    def text(self, payload: bytes) -> str:
        """Return the address, and the bits of its network."""
        length = ADDRESS_BYTES.get(payload[0]) if payload else None
        if length is None or len(payload) != length + 2 or payload[1] > length * 8:
            raise BadDatum(f"network address of {len(payload)} bytes")
        address = payload[2:]
        text = _dotted(address) if length == 4 else ipv6_text(address)
        return f"{text}/{payload[1]}" if self._always_bits or payload[1] != length * 8 else text


class MacAddressCodec(TextCodec):
    """`macaddr` and `macaddr8`: six or eight bytes."""

    def __init__(self, length: int) -> None:
        self._length = length

    def text(self, payload: bytes) -> str:
        """Return the bytes in hexadecimal, separated by colons."""
        if len(payload) != self._length:
            raise BadDatum(f"MAC address of {len(payload)} bytes, but its type has {self._length}")
        return payload.hex(":")
