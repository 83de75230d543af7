"""Installing and uninstalling the bridge in `torch.distributed.rpc`, each test in its own process.

The processes have imported torch and not this project. That is the state right before our entry point
runs at the end of ``import torch``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from core.kit import Children, Site

HEAVY = ("importlib_metadata", "pluggy")

SNAPSHOT = """
import sys
from torch.distributed import rpc
MODULES = [rpc, rpc.api, rpc.backend_registry]
def snapshot():
    return [dict(vars(module)) for module in MODULES]
"""


def test_installing_scans_nothing_and_imports_little(site: Site, children: Children) -> None:
    site.add_backend("PIGEON")
    site.add_hooks("tracing", "")
    output = children.run(
        """
        import json, sys
        before = set(sys.modules)
        from rpc_backends_core import autoload
        from rpc_backends_core import _discovery as discovery
        discovery.scan = None  # a scan would fail
        autoload.install()
        assert autoload.failure() is None
        new = set(sys.modules) - before
        from torch.distributed import rpc
        assert rpc.BackendType.__module__ == "rpc_backends_core._backend_type"
        print(json.dumps(sorted(new)))
        """,
        site=site,
    )
    new = json.loads(output)
    assert not [name for name in new if name.partition(".")[0] in (*HEAVY, "sample_backend_pigeon")]
    # Nothing else may be imported, because it would slow down every `import torch`.
    assert [name for name in new if not name.startswith("rpc_backends_core")] == []


def test_installing_creates_no_registry(children: Children) -> None:
    children.run(
        """
        import sys
        from rpc_backends_core import autoload
        from rpc_backends_core._process_state import STATE
        autoload.install()
        assert STATE.registry is None
        assert "rpc_backends_core._registry" not in sys.modules
        """
    )


def test_uninstalling_restores_torch_exactly(children: Children) -> None:
    children.run(
        SNAPSHOT
        + """
from rpc_backends_core import _patches as patches
before = snapshot()
for _ in range(2):
    patches.install()
    assert patches.is_installed()
    assert snapshot() != before
    patches.uninstall()
    assert not patches.is_installed()
    after = snapshot()
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys(), one.keys() ^ other.keys()
        assert [name for name in one if one[name] is not other[name]] == []
"""
    )


def test_installing_twice_has_no_further_effect(children: Children) -> None:
    children.run(
        SNAPSHOT
        + """
from rpc_backends_core import _patches as patches
before = snapshot()
patches.install()
patches.install()
patches.uninstall()
assert rpc.init_rpc is before[0]["init_rpc"]
patches.uninstall()
"""
    )


def test_uninstalling_after_a_plugin_was_used_restores_torch(
    site: Site, children: Children
) -> None:
    site.add_backend("PIGEON")
    children.run(
        SNAPSHOT
        + """
from rpc_backends_core import _patches as patches
torchs = rpc.BackendType
patches.install()
rpc.BackendType.PIGEON.value
patches.uninstall()
assert rpc.BackendType is rpc.backend_registry.BackendType is torchs
assert [member.name for member in torchs] == ["TENSORPIPE"]
""",
        site=site,
    )


def test_registered_backends_survive_install_and_uninstall(
    children: Children,
) -> None:
    children.run(
        SNAPSHOT
        + """
from rpc_backends_core import _patches as patches
pairs = {name: (lambda *a, **k: None, lambda *a, **k: None) for name in ("BEFORE", "SINCE", "BETWEEN")}
old = rpc.backend_registry.register_backend("BEFORE", *pairs["BEFORE"])

patches.install()
assert rpc.BackendType(old) is rpc.BackendType.BEFORE
assert rpc.BackendType.BEFORE.value == pairs["BEFORE"]
rpc.backend_registry.register_backend("SINCE", *pairs["SINCE"])

patches.uninstall()
assert rpc.BackendType is rpc.backend_registry.BackendType
assert {m.name for m in rpc.BackendType} == {"TENSORPIPE", "BEFORE", "SINCE"}
assert rpc.BackendType.SINCE.value == pairs["SINCE"]
rpc.backend_registry.register_backend("BETWEEN", *pairs["BETWEEN"])

patches.install()
names = [m.name for m in rpc.BackendType]
assert sorted(names) == ["BEFORE", "BETWEEN", "SINCE", "TENSORPIPE"], names
for name, pair in pairs.items():
    assert rpc.BackendType[name].value == pair
"""
    )


def test_uninstalling_keeps_backends_beside_an_invalid_one(children: Children) -> None:
    children.run(
        SNAPSHOT
        + """
from rpc_backends_core import _patches as patches
patches.install()
rpc.backend_registry.register_backend("A", print, print)
rpc.backend_registry.register_backend("ODD", None, None)
rpc.backend_registry.register_backend("Z", print, repr)  # torch makes aliases of equal handlers
patches.uninstall()
assert {"A", "Z"} <= {m.name for m in rpc.BackendType}
"""
    )


def test_uninstalling_works_with_invalid_variables(children: Children) -> None:
    children.run(
        SNAPSHOT
        + """
from rpc_backends_core import _patches as patches
patches.install()
rpc.backend_registry.register_backend("MINE", print, print)
from rpc_backends_core._default_registry import default_registry
default_registry()._plugins = None  # as if MINE had been registered during the import of torch
import os
os.environ["RPC_BACKENDS_DENY"] = "TYPO"
patches.uninstall()
assert "MINE" in {m.name for m in rpc.BackendType}
"""
    )


def test_names_imported_before_uninstalling_still_work(
    children: Children,
) -> None:
    children.run(
        """
        from rpc_backends_core import _patches as patches
        patches.install()
        from torch.distributed.rpc import BackendType, construct_rpc_backend_options, shutdown
        patches.uninstall()
        assert construct_rpc_backend_options(BackendType.TENSORPIPE).rpc_timeout == 60
        try:
            shutdown()
        except RuntimeError as error:
            assert "has not been initialized" in str(error), error
        """
    )


def test_torchs_own_backend_has_its_options_type(
    children: Children,
) -> None:
    children.run(
        """
        from rpc_backends_core import _patches as patches
        patches.install()
        from rpc_backends_core import record
        from rpc_backends_core._default_registry import default_registry
        from torch.distributed import rpc
        found = record("TENSORPIPE")
        assert (found.source, found.distribution, found.state) == ("torch", "torch", "registered")
        entry = default_registry().find("TENSORPIPE")
        assert entry.options_type is rpc.TensorPipeRpcBackendOptions
        """
    )


def test_a_star_import_of_torchs_rpc_works(children: Children) -> None:
    # Stock torch lacks five names that its own `__all__` lists.
    children.run(
        """
        from rpc_backends_core import _patches as patches
        patches.install()
        from torch.distributed.rpc import *
        from torch.distributed import rpc
        assert BackendType is rpc.BackendType
        assert BackendType["TENSORPIPE"].value._fields == BackendValue._fields
        assert init_rpc is rpc.init_rpc
        """
    )


def test_a_misspelt_list_does_not_prevent_the_install(children: Children) -> None:
    children.run(
        """
        from rpc_backends_core import autoload
        from rpc_backends_core import _patches as patches
        autoload.install()
        assert autoload.failure() is None
        assert patches.is_installed()
        """,
        env={"RPC_BACKENDS_DENY": "TYPO"},
    )


# --- backends that torch registers later -----------------------------------------------------------

TESTING = """
import torch
from rpc_backends_core import _patches as patches
patches.install()
from torch.distributed import rpc
import torch.distributed.rpc._testing
from rpc_backends_core import records
print([(r.name, r.source, r.state) for r in records() if r.name == "FAULTY_TENSORPIPE"])
assert rpc.BackendType is rpc.backend_registry.BackendType
assert rpc.backend_registry.backend_registered("FAULTY_TENSORPIPE")
"""


def test_torchs_testing_module_registers_torchs_own_backend(children: Children) -> None:
    assert children.run(TESTING) == "[('FAULTY_TENSORPIPE', 'torch', 'registered')]"


def test_torchs_testing_module_does_not_replace_a_plugin(site: Site, children: Children) -> None:
    site.add_backend("FAULTY_TENSORPIPE")
    assert children.run(TESTING, site=site) == str(
        [("FAULTY_TENSORPIPE", "plugin", "found"), ("FAULTY_TENSORPIPE", "torch", "shadowed")]
    )


def test_options_of_torchs_testing_backend_select_it(children: Children) -> None:
    children.run(
        TESTING
        + """
from rpc_backends_core._resolve import resolve_start
from rpc_backends_core._settings import Settings
from torch._C._distributed_rpc_testing import FaultyTensorPipeRpcBackendOptions
options = FaultyTensorPipeRpcBackendOptions(
    num_worker_threads=1, rpc_timeout=1, init_method="env://",
    messages_to_fail=[], messages_to_delay={}, num_fail_sends=0)
settings = Settings.from_environment()
assert resolve_start(None, options, settings).name == "FAULTY_TENSORPIPE"
plain = rpc.TensorPipeRpcBackendOptions()
assert resolve_start(None, plain, settings).name == "TENSORPIPE"
"""
    )


# --- old-style packages ----------------------------------------------------------------------------

OLD_STYLE = """
def register():
    from torch.distributed.rpc import backend_registry
    member = backend_registry.register_backend("CARRIER", print, print)
    import torch.distributed.rpc
    torch.distributed.rpc.BackendType = backend_registry.BackendType
    return member
"""
AS_ONE_ENUM = """
assert rpc.BackendType is rpc.backend_registry.BackendType is rpc_backends_core.BackendType
assert rpc.BackendType.CARRIER.value == (print, print)
assert rpc.BackendType(member) is rpc.BackendType.CARRIER
assert {m.name for m in rpc.BackendType} == {"TENSORPIPE", "CARRIER"}
assert rpc_backends_core.record("CARRIER").source == "process"
"""


def test_an_old_style_package_may_run_before_the_core(
    children: Children,
) -> None:
    children.run(
        OLD_STYLE
        + """
member = register()
import rpc_backends_core
from rpc_backends_core import autoload
autoload.install()
from torch.distributed import rpc
"""
        + AS_ONE_ENUM
    )


def test_an_old_style_package_may_run_after_the_core(
    children: Children,
) -> None:
    children.run(
        OLD_STYLE
        + """
import rpc_backends_core
from rpc_backends_core import autoload
autoload.install()
from torch.distributed import rpc
member = register()
"""
        + AS_ONE_ENUM
    )


def test_the_order_of_entry_points_does_not_order_members(children: Children) -> None:
    ours = "from rpc_backends_core import autoload; autoload.install()\n"
    order = "from torch.distributed import rpc; print([m.name for m in rpc.BackendType])\n"
    theirs_first = children.run(OLD_STYLE + "register()\n" + ours + order)
    ours_first = children.run(OLD_STYLE + ours + "register()\n" + order)
    assert theirs_first == ours_first == "['TENSORPIPE', 'CARRIER']"


# --- a torch without RPC ---------------------------------------------------------------------------


def without(function: str) -> str:
    return (
        SNAPSHOT
        + f"""
import torch.distributed
{function} = lambda: False
from rpc_backends_core import autoload
from rpc_backends_core import _patches as patches
before = snapshot()
autoload.install()
assert snapshot() == before
assert not patches.is_installed()
assert autoload.failure() is None
patches.uninstall()
"""
    )


def test_a_torch_without_rpc_is_unchanged(children: Children) -> None:
    children.run(without("torch.distributed.rpc.is_available"))


def test_a_torch_without_distributed_is_unchanged(children: Children) -> None:
    children.run(without("torch.distributed.is_available"))


# --- failures --------------------------------------------------------------------------------------


def test_a_failed_install_is_recorded_and_undone(children: Children) -> None:
    children.run(
        SNAPSHOT
        + """
from rpc_backends_core import autoload
from rpc_backends_core import _patches as patches
del rpc.backend_registry
before = snapshot()
autoload.install()
assert isinstance(autoload.failure(), AttributeError)
assert snapshot() == before
assert not patches.is_installed()
"""
    )


def test_a_failed_import_of_the_bridge_is_recorded(children: Children) -> None:
    children.run(
        """
        import sys
        sys.modules["rpc_backends_core._patches"] = None  # makes importing it fail
        from rpc_backends_core import autoload
        autoload.install()
        assert isinstance(autoload.failure(), ImportError)
        """
    )


def test_a_later_success_clears_the_failure(children: Children) -> None:
    children.run(
        """
        from rpc_backends_core import autoload
        from rpc_backends_core import _patches as patches
        install, patches.install = patches.install, None
        autoload.install()
        assert isinstance(autoload.failure(), TypeError)
        patches.install = install
        autoload.install()
        assert patches.is_installed()
        assert autoload.failure() is None
        """
    )


def test_without_a_private_name_the_rest_works(
    children: Children,
) -> None:
    # Importing torch never fails. _bridge.torch_internals says what fails without each name.
    children.run(
        SNAPSHOT
        + """
del rpc.api._delete_all_user_and_unforked_owner_rrefs
from rpc_backends_core import autoload
from rpc_backends_core import _patches as patches
autoload.install()
assert autoload.failure() is None, autoload.failure()
assert rpc.BackendType.TENSORPIPE.value
patches.uninstall()
assert not hasattr(rpc.api, "_delete_all_user_and_unforked_owner_rrefs")
"""
    )


def test_autoload_0_allows_install_by_hand(
    children: Children,
) -> None:
    for value in ("0", "false", " OFF "):
        children.run(
            """
            from rpc_backends_core import autoload
            from rpc_backends_core import _patches as patches
            autoload.install()
            assert not patches.is_installed()
            patches.install()
            assert patches.is_installed()
            """,
            env={"RPC_BACKENDS_AUTOLOAD": value},
        )


def test_an_invalid_autoload_value_is_a_recorded_failure(children: Children) -> None:
    children.run(
        """
        from rpc_backends_core import autoload
        autoload.install()
        assert "RPC_BACKENDS_AUTOLOAD='offf'" in str(autoload.failure()), autoload.failure()
        """,
        env={"RPC_BACKENDS_AUTOLOAD": "offf"},
    )


def test_serialize_raises_pickles_error_if_rpc_is_not_running(children: Children) -> None:
    """Torch's suites and programs call it after shutdown."""
    children.run(
        """
        import threading
        from torch.distributed.rpc import internal
        from rpc_backends_core import _patches as patches
        patches.install()
        try:
            internal.serialize(threading.Lock())
        except TypeError as error:
            assert "cannot pickle '_thread.lock' object" in str(error), error
        else:
            raise AssertionError("a lock was pickled")
        """
    )


# --- private names ---------------------------------------------------------------------------------


def test_this_torch_has_every_private_name() -> None:
    from rpc_backends_core._bridge import torch_internals

    assert torch_internals.missing() == []


def test_a_missing_private_name_is_reported(monkeypatch: Any) -> None:
    from rpc_backends_core._bridge import torch_internals

    monkeypatch.delattr(sys.modules["torch.distributed.rpc.api"], "_init_rpc_states")
    assert [name.path for name in torch_internals.missing()] == [
        "torch.distributed.rpc.api._init_rpc_states"
    ]
