"""How many examples a property test looks at: a number for the whole profile, less for a smaller one of Hypothesis."""

from hypothesis import settings

WHOLE = 100  # examples of a test without a number, in a whole profile


def examples(number: int) -> int:
    """Return the part of `number` that the loaded profile looks at."""
    return max(1, number * settings().max_examples // WHOLE)
