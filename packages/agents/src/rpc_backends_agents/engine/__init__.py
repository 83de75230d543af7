"""The engine kit: options that are declared once, and transports whose peers prove themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backends_agents.engine import canonical
    from rpc_backends_agents.engine.declarations import (
        DeclaredOptions,
        Option,
        VariableOption,
        construct_handler,
    )
    from rpc_backends_agents.engine.guarded_transport import HANDSHAKE_TIMEOUT, GuardedTransport
    from rpc_backends_agents.engine.handlers import (
        CAPABILITIES,
        engine_backend,
        init_handler,
        lacks_secret,
    )
    from rpc_backends_agents.engine.kinds import (
        BYTES,
        INTEGER,
        PATH,
        SECRET,
        YES_OR_NO,
        Kind,
        integer,
        seconds,
        text,
    )
    from rpc_backends_agents.engine.option_checks import OptionChecks
    from rpc_backends_agents.engine.options import (
        CertifiedOptions,
        EngineOptions,
        GuardedOptions,
    )
    from rpc_backends_agents.engine.publication import Publication
    from rpc_backends_agents.engine.sealed import Form
    from rpc_backends_agents.engine.secret import Secret

__all__ = [
    "BYTES",
    "CAPABILITIES",
    "HANDSHAKE_TIMEOUT",
    "INTEGER",
    "PATH",
    "SECRET",
    "YES_OR_NO",
    "CertifiedOptions",
    "DeclaredOptions",
    "EngineOptions",
    "Form",
    "GuardedOptions",
    "GuardedTransport",
    "Kind",
    "Option",
    "OptionChecks",
    "Publication",
    "Secret",
    "VariableOption",
    "canonical",
    "construct_handler",
    "engine_backend",
    "init_handler",
    "integer",
    "lacks_secret",
    "seconds",
    "text",
]

#: The module of each name. They are imported at first use: most of them import torch.
_MODULES = {
    "declarations": ("DeclaredOptions", "Option", "VariableOption", "construct_handler"),
    "guarded_transport": ("HANDSHAKE_TIMEOUT", "GuardedTransport"),
    "handlers": ("CAPABILITIES", "engine_backend", "init_handler", "lacks_secret"),
    "kinds": (
        "BYTES",
        "INTEGER",
        "PATH",
        "SECRET",
        "YES_OR_NO",
        "Kind",
        "integer",
        "seconds",
        "text",
    ),
    "option_checks": ("OptionChecks",),
    "options": ("CertifiedOptions", "EngineOptions", "GuardedOptions"),
    "publication": ("Publication",),
    "sealed": ("Form",),
    "secret": ("Secret",),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "canonical":
        return import_module(f"{__name__}.canonical")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
