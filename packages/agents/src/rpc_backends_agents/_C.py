"""The C++ of this package: on import, the extension for the installed torch takes this module's place."""

from rpc_backends_agents.loading import load_usual

if not load_usual(__name__):
    from rpc_backends_agents.torch_builds import load

    load(__name__)
