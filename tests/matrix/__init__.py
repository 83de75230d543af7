"""Runs the tests with other versions of torch and Python; ``make matrix`` starts it."""
