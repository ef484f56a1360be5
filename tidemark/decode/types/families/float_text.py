"""The shortest decimal text of binary floating point, as PostgreSQL 12 and later choose it (`d2s.c`, `f2s.c`).

Python and PostgreSQL both look for the fewest digits that read back as the same number, and of these the closest. They
differ in one case: Python's repr accepts a decimal exactly half way to the neighbour, if rounding to even reads it back
correctly; PostgreSQL never does (other readers may round otherwise) and needs one more digit there.
"""

import struct

MANTISSA_BITS = {4: 23, 8: 52}
EXPONENT_BIAS = {4: 127, 8: 1023}
FIXED_NOTATION_BELOW = {4: 6, 8: 15}  # decimal exponents from -4 to this one (exclusive) print without `e`
FIXED_NOTATION_FROM = -4
DIGITS_MAX = {4: 9, 8: 17}  # enough for any value
_DOUBLE = struct.Struct("<d")
_SINGLE = struct.Struct("<f")
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
# Between two doubles below this the midpoint has more than 17 digits: repr cannot produce it.
HALF_WAY_FROM = float(1 << 51)


def double_text(payload: bytes) -> str:
    """Return the text of the eight bytes of a float8."""
    (value,) = _DOUBLE.unpack(payload)
    (bits,) = _U64.unpack(payload)
    special = _special_text(bits, 8)
    if special is not None:
        return special
    digits, exponent = _repr_digits(value)
    if abs(value) >= HALF_WAY_FROM and _on_boundary(bits, 8, digits, exponent):
        digits, exponent = _shortest_inside(bits, 8, len(digits))
    return _notation(digits, exponent, negative=bool(bits >> 63), width=8)


def single_text(payload: bytes) -> str:
    """Return the text of the four bytes of a float4."""
    (bits,) = _U32.unpack(payload)
    special = _special_text(bits, 4)
    if special is not None:
        return special
    digits, exponent = _shortest_inside(bits, 4, 1)
    return _notation(digits, exponent, negative=bool(bits >> 31), width=4)


def _special_text(bits: int, width: int) -> str | None:
    """Return the text of zeros, infinities and NaNs; None for other values."""
    mantissa_bits = MANTISSA_BITS[width]
    sign = bits >> (width * 8 - 1)
    magnitude = bits & ((1 << width * 8 - 1) - 1)
    infinity = (2 * EXPONENT_BIAS[width] + 1) << mantissa_bits
    if magnitude > infinity:
        return "NaN"
    if magnitude == infinity:
        return "-Infinity" if sign else "Infinity"
    if magnitude == 0:
        return "-0" if sign else "0"
    return None


def _repr_digits(value: float) -> tuple[str, int]:
    """Return repr's digits without leading and trailing zeros, and the decimal exponent of the first one."""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    stripped = digits.lstrip("0")
    exponent = len(whole) - 1 - (len(digits) - len(stripped)) + int(power or 0)
    return stripped.rstrip("0"), exponent


def _halves(bits: int, width: int) -> tuple[int, int, int, int]:
    """Return (value, lower bound, upper bound, power): integers, in units of 2 ** power.

    The bounds are half way to the neighbours: at a power of two the lower neighbour is only half as far.
    """
    mantissa_bits = MANTISSA_BITS[width]
    mantissa = bits & ((1 << mantissa_bits) - 1)
    biased = bits >> mantissa_bits & (2 * EXPONENT_BIAS[width] + 1)
    at_power_of_two = mantissa == 0 and biased > 1
    if biased:
        mantissa |= 1 << mantissa_bits
    power = max(biased, 1) - EXPONENT_BIAS[width] - mantissa_bits - 2
    value = mantissa << 2
    return value, value - (1 if at_power_of_two else 2), value + 2, power


def _scaled(number: int, power: int, decimal: int) -> tuple[int, int]:
    """Return number * 2 ** power / 10 ** decimal as a fraction (numerator, denominator)."""
    numerator = number << max(power, 0)
    denominator = 1 << max(-power, 0)
    if decimal >= 0:
        return numerator, denominator * 10**decimal
    return numerator * 10**-decimal, denominator


def _on_boundary(bits: int, width: int, digits: str, exponent: int) -> bool:
    """Return whether the decimal is exactly half way to a neighbour."""
    _, low, high, power = _halves(bits, width)
    last_digit = exponent - len(digits) + 1
    decimal = int(digits)
    for bound in (low, high):
        numerator, denominator = _scaled(bound, power, last_digit)
        if numerator == decimal * denominator:
            return True
    return False


def _shortest_inside(bits: int, width: int, digits_min: int) -> tuple[str, int]:
    """Return the digits of the shortest, then closest, decimal strictly between the bounds; and its exponent."""
    value, low, high, power = _halves(bits, width)
    # The decimal exponent of the value: an estimate from its bits, at most one too high, corrected below.
    exponent = (value.bit_length() + power) * 30103 // 100000
    numerator, denominator = _scaled(value, power, exponent)
    if numerator < denominator:
        exponent -= 1
    for length in range(digits_min, DIGITS_MAX[width] + 1):
        unit = exponent - length + 1
        numerator, denominator = _scaled(value, power, unit)
        floor, rest = divmod(numerator, denominator)
        low_numerator, low_denominator = _scaled(low, power, unit)
        high_numerator, high_denominator = _scaled(high, power, unit)
        inside = [
            candidate
            for candidate in (floor, floor + 1)
            if low_numerator < candidate * low_denominator and candidate * high_denominator < high_numerator
        ]
        if not inside:
            continue
        above = 2 * rest > denominator or (2 * rest == denominator and floor % 2 == 1)
        chosen = inside[-1 if above else 0]
        text = str(chosen)
        return text.rstrip("0"), exponent + len(text) - length
    raise AssertionError(bits)


def _notation(digits: str, exponent: int, *, negative: bool, width: int) -> str:
    """Format the digits like `%g`, with the thresholds of the width."""
    sign = "-" if negative else ""
    if not FIXED_NOTATION_FROM <= exponent < FIXED_NOTATION_BELOW[width]:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    if len(digits) <= exponent + 1:
        return sign + digits + "0" * (exponent + 1 - len(digits))
    return f"{sign}{digits[: exponent + 1]}.{digits[exponent + 1 :]}"
