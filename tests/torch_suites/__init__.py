"""PyTorch's own RPC suites, from its wheel, run against the installed backends.

This is a package because the processes of a test import its class by name.
"""
