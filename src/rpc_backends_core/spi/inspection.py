"""For tools that look into the registry of a process: what is there, whether it works, what is set."""

from __future__ import annotations

from rpc_backends_core import _settings as settings
from rpc_backends_core._api import construct_rpc_backend_options, record, records, refresh
from rpc_backends_core._builtin_backends import CAPABILITIES as BUILTIN_CAPABILITIES
from rpc_backends_core._builtin_backends import options_type_of
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._discovery import (
    BACKENDS_GROUP,
    CHECKS_GROUP,
    COMMANDS_GROUP,
    HOOKS_GROUP,
    declared,
)
from rpc_backends_core._hooks import Hooks, HookWarning
from rpc_backends_core._patches import is_installed
from rpc_backends_core.autoload import failure as autoload_failure

__all__ = [
    "BACKENDS_GROUP",
    "BUILTIN_CAPABILITIES",
    "CHECKS_GROUP",
    "COMMANDS_GROUP",
    "HOOKS_GROUP",
    "HookWarning",
    "Hooks",
    "autoload_failure",
    "construct_rpc_backend_options",
    "declared",
    "default_registry",
    "is_installed",
    "options_type_of",
    "record",
    "records",
    "refresh",
    "settings",
]
