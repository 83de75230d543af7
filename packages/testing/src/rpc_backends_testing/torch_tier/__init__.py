"""Torch's own RPC suites that suit any backend; they are in torch's wheel.

They run only with ``--tier torch``: hundreds of tests with four processes each.
"""
