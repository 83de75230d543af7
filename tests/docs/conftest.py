"""Leave out the tests of the site where packages with C++ are missing, as in `make test-lowest`."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = ("rpc_backend_zeromq", "rpc_backends_faults", "rpc_backends_agents")

collect_ignore = [] if all(map(find_spec, NEEDED)) else ["test_site.py"]
