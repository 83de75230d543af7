"""Transports in this package: an example in Python."""
