"""For tools that inspect a process's registry: backends, hooks, settings and their state."""

from __future__ import annotations

from rpc_backends_core._lazy import lazy_names

_HOMES = {
    "construct_rpc_backend_options": "_api",
    "record": "_api",
    "records": "_api",
    "refresh": "_api",
    "options_type_of": "_builtin_backends",
    "BUILTIN_CAPABILITIES": "_builtin_backends:CAPABILITIES",
    "default_registry": "_default_registry",
    "BACKENDS_GROUP": "_discovery",
    "CHECKS_GROUP": "_discovery",
    "COMMANDS_GROUP": "_discovery",
    "HOOKS_GROUP": "_discovery",
    "VARIABLES_GROUP": "_discovery",
    "declared": "_discovery",
    "misspelt_group_text": "_discovery",
    "misspelt_groups": "_discovery",
    "unreadable": "_discovery",
    "HookWarning": "_hooks",
    "Hooks": "_hooks",
    "use_hooks": "_hooks:use",
    "lock": "_lock:",
    "other_variables": "_other_variables",
    "is_installed": "_patches",
    "check_default_options": "_resolve",
    "check_replacement": "_without_tensorpipe",
    "settings": "_settings:",
    "autoload_failure": "autoload:failure",
}

__all__ = list(_HOMES)

__getattr__ = lazy_names(__name__, _HOMES)
