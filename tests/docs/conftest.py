"""The site needs every package to be tested; `make test-lowest` has only those without C++."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("rpc_backend_zeromq", "rpc_backends_faults", "rpc_backends_agents")

collect_ignore = [] if all(map(find_spec, NEEDED)) else ["test_site.py"]
