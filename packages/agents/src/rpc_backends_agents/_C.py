"""The C++ of this package: on import, the extension for the installed torch takes this module's place."""

from rpc_backends_agents.torch_builds import load

load(__name__)
