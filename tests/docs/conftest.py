"""The test of the site needs every package; `make test-lowest` installs only those without C++."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("rpc_backend_zeromq", "rpc_backends_faults", "rpc_backends_agents")

collect_ignore = [] if all(map(find_spec, NEEDED)) else ["test_site.py"]
