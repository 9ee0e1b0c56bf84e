"""Convert a whole column of decimals to a precision and scale, never to another value.

Arrow checks a decimal's precision. But where it raises the scale, it may not notice that the product overflows the
type's bits. So nothing is rescaled here that could overflow:

    1.  Digits are read into a type that has room for every number of so many digits after the shift by the scale.
    2.  From there a cast checks the rest. Before a cast from a decimal of a lower scale, the size of the numbers is
        checked.
"""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

DIGITS_MAX = 38


class DoesNotFit(ValueError):
    """At least one decimal of the column does not fit its type, or may not fit."""


def parsed_as(target: pa.Decimal128Type) -> pa.DataType:
    """The type of ``target``'s scale that Arrow may read digits as; Arrow refuses a number with more digits than its precision.

    ``digits + scale`` is at most what the type's bits hold, so a shift by the scale does not overflow. The type is never
    ``target`` itself: then Arrow would do no cast, and so no check.
    """
    if target.precision + target.scale < DIGITS_MAX:
        return pa.decimal128(DIGITS_MAX - target.scale, target.scale)
    return pa.decimal256(DIGITS_MAX, target.scale)


def of_digits(texts: pa.StringArray, target: pa.Decimal128Type) -> pa.Decimal128Array:
    """Decimals from texts of digits, with or without a sign and a point. Raises ``ValueError``."""
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > DIGITS_MAX:
        raise DoesNotFit(f"perhaps more than {DIGITS_MAX} digits")
    narrow = longest + target.scale <= DIGITS_MAX
    wide = pa.decimal128(DIGITS_MAX, target.scale) if narrow else pa.decimal256(2 * DIGITS_MAX, target.scale)
    return texts.cast(wide).cast(target)


def fitted(values: pa.Decimal128Array, target: pa.Decimal128Type) -> pa.Decimal128Array:
    """The same numbers in another precision and scale. Raises ``ValueError``."""
    if values.type == target:
        return values
    limit = target.precision - target.scale + values.type.scale
    if values.type.scale < target.scale and limit < DIGITS_MAX:
        bound = pa.scalar(Decimal((0, (1,), limit - values.type.scale)), pa.decimal128(DIGITS_MAX, values.type.scale))
        low, high = pc.less(values, pc.negate(bound)), pc.greater(values, bound)
        if pc.any(pc.or_(low, high)).as_py():
            raise DoesNotFit(f"numbers too large for {target}")
    return values.cast(target)
