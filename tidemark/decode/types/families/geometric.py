"""`point`, `line`, `lseg`, `box`, `path`, `polygon`, `circle` (`geo_ops.c`, PG 16): float8s, printed as such."""

import struct

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import TextCodec
from tidemark.decode.types.families.float_text import double_text

FLOAT_BYTES = 8
POINT_BYTES = 2 * FLOAT_BYTES
PATH_POINTS_AT = 12  # after count, closed flag, padding
POLYGON_POINTS_AT = 36  # after count, bounding box
_PATH = struct.Struct("<ii")
_COUNT = struct.Struct("<i")


def float_texts(payload: bytes, at: int, count: int) -> list[str]:
    """Return the text of `count` float8s."""
    return [
        double_text(payload[place : place + FLOAT_BYTES]) for place in range(at, at + count * FLOAT_BYTES, FLOAT_BYTES)
    ]


def _points(payload: bytes, at: int, count: int) -> str:
    texts = float_texts(payload, at, 2 * count)
    return ",".join(f"({x},{y})" for x, y in zip(texts[::2], texts[1::2], strict=True))


class FixedShapeCodec(TextCodec):
    """A shape with a fixed number of points, printed between `before` and `after`: `point`, `lseg`, `box`."""

    def __init__(self, points: int, before: str = "", after: str = "") -> None:
        self._points = points
        self._before = before
        self._after = after

    def text(self, payload: bytes) -> str:
        """Return the points."""
        if len(payload) != self._points * POINT_BYTES:
            raise BadDatum(f"shape of {self._points} points in {len(payload)} bytes")
        return self._before + _points(payload, 0, self._points) + self._after


class LineCodec(TextCodec):
    """`line`: the coefficients of Ax + By + C = 0."""

    def text(self, payload: bytes) -> str:
        """Return the coefficients."""
        if len(payload) != 3 * FLOAT_BYTES:
            raise BadDatum(f"line has the invalid length {len(payload)}")
        return "{" + ",".join(float_texts(payload, 0, 3)) + "}"


class CircleCodec(TextCodec):
    """`circle`: center and radius."""

    def text(self, payload: bytes) -> str:
        """Return center and radius."""
        if len(payload) != 3 * FLOAT_BYTES:
            raise BadDatum(f"circle has the invalid length {len(payload)}")
        x, y, radius = float_texts(payload, 0, 3)
        return f"<({x},{y}),{radius}>"


class PathCodec(TextCodec):
    """`path`: any number of points, open or closed."""

    def text(self, payload: bytes) -> str:
        """Return the points, in brackets if the path is open."""
        if len(payload) < PATH_POINTS_AT:
            raise BadDatum(f"path of {len(payload)} bytes is cut off")
        count, closed = _PATH.unpack_from(payload)
        if PATH_POINTS_AT + count * POINT_BYTES != len(payload):
            raise BadDatum(f"path of {count} points in {len(payload)} bytes")
        points = _points(payload, PATH_POINTS_AT, count)
        return f"({points})" if closed else f"[{points}]"


class PolygonCodec(TextCodec):
    """`polygon`: any number of points, after their bounding box."""

    def text(self, payload: bytes) -> str:
        """Return the points."""
        if len(payload) < POLYGON_POINTS_AT:
            raise BadDatum(f"polygon of {len(payload)} bytes is cut off")
        (count,) = _COUNT.unpack_from(payload)
        if POLYGON_POINTS_AT + count * POINT_BYTES != len(payload):
            raise BadDatum(f"polygon of {count} points in {len(payload)} bytes")
        return f"({_points(payload, POLYGON_POINTS_AT, count)})"
