"""The second tier: the RPC suites that torch ships in its wheel and that suit any backend.

They run only where they are asked for (``--tier torch``): there are hundreds, of four processes each.
"""
