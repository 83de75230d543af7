"""Transports that come with the agents: an example in Python, and one for tests."""
