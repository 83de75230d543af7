from __future__ import annotations

from rpc_backends_core import _lock as lock
from rpc_backends_core import _settings as settings
from rpc_backends_core._api import construct_rpc_backend_options as construct_rpc_backend_options
from rpc_backends_core._api import record as record
from rpc_backends_core._api import records as records
from rpc_backends_core._api import refresh as refresh
from rpc_backends_core._builtin_backends import CAPABILITIES as BUILTIN_CAPABILITIES
from rpc_backends_core._builtin_backends import options_type_of as options_type_of
from rpc_backends_core._default_registry import default_registry as default_registry
from rpc_backends_core._discovery import BACKENDS_GROUP as BACKENDS_GROUP
from rpc_backends_core._discovery import CHECKS_GROUP as CHECKS_GROUP
from rpc_backends_core._discovery import COMMANDS_GROUP as COMMANDS_GROUP
from rpc_backends_core._discovery import HOOKS_GROUP as HOOKS_GROUP
from rpc_backends_core._discovery import VARIABLES_GROUP as VARIABLES_GROUP
from rpc_backends_core._discovery import declared as declared
from rpc_backends_core._discovery import misspelt_group_text as misspelt_group_text
from rpc_backends_core._discovery import misspelt_groups as misspelt_groups
from rpc_backends_core._discovery import unreadable as unreadable
from rpc_backends_core._hooks import Hooks as Hooks
from rpc_backends_core._hooks import HookWarning as HookWarning
from rpc_backends_core._hooks import use as use_hooks
from rpc_backends_core._other_variables import other_variables as other_variables
from rpc_backends_core._patches import is_installed as is_installed
from rpc_backends_core._resolve import check_default_options as check_default_options
from rpc_backends_core._without_tensorpipe import check_replacement as check_replacement
from rpc_backends_core.autoload import failure as autoload_failure

__all__ = [
    "BACKENDS_GROUP",
    "BUILTIN_CAPABILITIES",
    "CHECKS_GROUP",
    "COMMANDS_GROUP",
    "HOOKS_GROUP",
    "VARIABLES_GROUP",
    "HookWarning",
    "Hooks",
    "autoload_failure",
    "check_default_options",
    "check_replacement",
    "construct_rpc_backend_options",
    "declared",
    "default_registry",
    "is_installed",
    "lock",
    "misspelt_group_text",
    "misspelt_groups",
    "options_type_of",
    "other_variables",
    "record",
    "records",
    "refresh",
    "settings",
    "unreadable",
    "use_hooks",
]
