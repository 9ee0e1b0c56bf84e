"""Decimals into a column's precision and scale, a whole column at once, and never to another value.

Arrow checks a decimal's precision, but where it raises the scale it may not see that the product has left the type's
bits. So nothing is rescaled here that could leave them:

    1.  Digits are read into a type with room for every number of the digits that it lets through, times the scale.
    2.  From there, and from a decimal of a lower scale after a look at its size, a cast checks the rest.
"""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

DIGITS_MAX = 38


class DoesNotFit(ValueError):
    """Some decimal of the column has no place in its type, or perhaps has none."""


def parsed_as(target: pa.Decimal128Type) -> pa.DataType:
    """What Arrow may read digits as, of ``target``'s scale; a number with more digits than it says is refused.

    ``digits + scale`` is at most what the type's bits hold, so shifting by the scale stays within them. It is never
    ``target``: Arrow would take the shifted numbers for checked ones, and cast nothing.
    """
    if target.precision + target.scale < DIGITS_MAX:
        return pa.decimal128(DIGITS_MAX - target.scale, target.scale)
    return pa.decimal256(DIGITS_MAX, target.scale)


def of_digits(texts: pa.StringArray, target: pa.Decimal128Type) -> pa.Decimal128Array:
    """Texts of digits, with or without a sign and a point. Raises ``ValueError``."""
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
