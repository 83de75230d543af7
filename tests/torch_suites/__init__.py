"""PyTorch's own RPC suites, which it ships in its wheel, run against the installed backends.

A package and not loose files, because the processes of a test must import its class by name.
"""
