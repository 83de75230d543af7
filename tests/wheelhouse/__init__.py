"""Builds the wheels of all distributions, for every supported torch; ``make wheels`` starts it."""
