"""What ``import torch`` provides where the packages are installed, and how to switch it off."""

from __future__ import annotations

import pytest

from support.environments import Environment


def test_import_torch_provides_every_installed_backend(installed: Environment) -> None:
    result = installed.run(
        """
        import json, torch
        rpc = torch.distributed.rpc
        members = rpc.BackendType.TENSORPIPE, rpc.BackendType.FAULTY_TENSORPIPE
        print(json.dumps([repr(member) for member in members]))
        """
    )

    assert result.json == ["BackendType.TENSORPIPE", "BackendType.FAULTY_TENSORPIPE"]


def test_import_torch_installs_one_shared_enum(
    installed: Environment,
) -> None:
    installed.run(
        """
        import torch.distributed.rpc as rpc
        import rpc_backends_core
        assert rpc.BackendType is rpc.backend_registry.BackendType
        assert rpc.BackendType is rpc_backends_core.BackendType
        """
    )


def test_import_torch_imports_no_plugin_or_dependency(installed: Environment) -> None:
    result = installed.run(
        """
        import json, sys, torch
        assert "rpc_backends_core" in sys.modules, "the entry point did not run"
        ours = ("pluggy", "importlib_metadata", "click", "rich", "rpc_backend_")
        print(json.dumps(sorted(name for name in sys.modules if name.startswith(ours))))
        """
    )

    assert result.json == []


def test_import_torch_imports_four_modules_of_the_core(installed: Environment) -> None:
    """More modules are more time in each program that imports torch."""
    result = installed.run(
        """
        import json, sys, torch
        core = "rpc_backends_core."
        print(json.dumps(sorted(n.removeprefix(core) for n in sys.modules if n.startswith(core))))
        """
    )

    assert result.json == ["_backend_type", "_patches", "_process_state", "autoload"]


def test_import_torch_does_not_scan_for_plugins(installed: Environment) -> None:
    """The only scan is that of torch, which finds the core's entry point."""
    result = installed.run(
        """
        import importlib.metadata, json
        scans, scan = [], importlib.metadata.entry_points
        importlib.metadata.entry_points = lambda **params: scans.append(params) or scan(**params)
        import torch
        print(json.dumps(scans))
        """
    )

    assert result.json == [{"group": "torch.backends"}]


def test_import_torch_starts_no_thread_and_prints_nothing(installed: Environment) -> None:
    result = installed.run("import threading, torch; print(threading.active_count())")

    assert result.stdout.strip() == "1"
    assert result.stderr == ""


def test_autoload_0_leaves_torch_unchanged(installed: Environment) -> None:
    code = """
        import json, torch.distributed.rpc as rpc
        functions = rpc.init_rpc, rpc.shutdown, rpc.backend_registry.register_backend
        print(json.dumps([rpc.BackendType.__module__, [member.name for member in rpc.BackendType],
                          [function.__module__ for function in functions]]))
        """

    result = installed.run(code, env={"RPC_BACKENDS_AUTOLOAD": "0"})
    stock = installed.run(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})

    assert result.json == stock.json
    assert result.json[1] == ["TENSORPIPE"]


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"])
def test_install_by_hand_works_without_autoload(installed: Environment, variable: str) -> None:
    installed.run(
        """
        import torch.distributed.rpc as rpc
        import rpc_backends_core
        assert not rpc_backends_core.is_installed()
        rpc_backends_core.install()
        assert rpc_backends_core.is_installed()
        assert rpc.BackendType is rpc_backends_core.BackendType
        assert rpc.BackendType.FAULTY_TENSORPIPE.name == "FAULTY_TENSORPIPE"
        """,
        env={variable: "0"},
    )


def test_uninstall_restores_everything(installed: Environment) -> None:
    installed.run(
        """
        import torch.distributed.rpc as rpc
        import rpc_backends_core

        def bound():
            modules = rpc, rpc.api, rpc.backend_registry
            return {(module.__name__, name): value
                    for module in modules for name, value in vars(module).items()}

        before = bound()
        rpc_backends_core.install()
        during = bound()
        assert during != before
        rpc_backends_core.uninstall()
        assert not rpc_backends_core.is_installed()
        after = bound()
        keys = before.keys() | after.keys()
        wrong = [key for key in keys if before.get(key) is not after.get(key)]
        assert not wrong, wrong

        rpc_backends_core.install()
        assert rpc.BackendType is rpc_backends_core.BackendType
        """,
        env={"RPC_BACKENDS_AUTOLOAD": "0"},
    )


def test_doctor_shows_a_misspelt_autoload_value(
    installed: Environment,
) -> None:
    misspelt = {"RPC_BACKENDS_AUTOLOAD": "flase"}

    assert installed.run("import torch", env=misspelt).returncode == 0

    doctor = installed.command("rpc-backends", "doctor", env=misspelt, check=False)
    assert doctor.returncode != 0, doctor
    assert "RPC_BACKENDS_AUTOLOAD" in doctor.stdout, doctor
    assert "flase" in doctor.stdout, doctor


def test_a_torch_built_without_rpc_is_unchanged(installed: Environment) -> None:
    """Such a torch lacks ``torch._C._rpc_init``; the test deletes it before torch looks for it."""
    result = installed.run(
        """
        import json, sys

        class WithoutRpc:
            def find_spec(self, name, path=None, target=None):
                if name == "torch.distributed.rpc":
                    del sys.modules["torch._C"]._rpc_init

        sys.meta_path.insert(0, WithoutRpc())
        import torch
        import torch.distributed.rpc as rpc
        assert not rpc.is_available(), "the build was not simulated"
        import rpc_backends_core
        print(json.dumps([hasattr(rpc, "BackendType"), rpc_backends_core.is_installed()]))
        """
    )

    assert result.json == [False, False]
    assert result.stderr == ""


def test_a_program_need_not_import_the_core(
    installed: Environment,
) -> None:
    installed.run(
        """
        import sys, torch.distributed.rpc as rpc
        rpc.BackendType.FAULTY_TENSORPIPE
        assert "rpc_backends_core" not in globals()
        assert "rpc_backend_tensorpipe" not in sys.modules, "a backend nobody asked for was loaded"
        """
    )


def test_importing_torchs_testing_module_keeps_the_plugin(
    installed: Environment,
) -> None:
    result = installed.run(
        """
        import json, torch.distributed.rpc as rpc
        before = rpc.BackendType.FAULTY_TENSORPIPE
        import torch.distributed.rpc._testing
        import rpc_backends_core
        record = rpc_backends_core.record("FAULTY_TENSORPIPE")
        assert rpc.BackendType.FAULTY_TENSORPIPE is before
        assert rpc.BackendType is rpc.backend_registry.BackendType
        print(json.dumps([record.source, record.distribution]))
        """
    )

    assert result.json == ["plugin", "rpc-backend-faulty-tensorpipe"]


def test_torchs_testing_module_may_be_imported_first(installed: Environment) -> None:
    result = installed.run(
        """
        import json, torch
        import torch.distributed.rpc._testing
        import torch.distributed.rpc as rpc
        import rpc_backends_core
        member = rpc.BackendType.FAULTY_TENSORPIPE
        rpc.backend_registry.construct_rpc_backend_options(member)
        record = rpc_backends_core.record("FAULTY_TENSORPIPE")
        print(json.dumps([record.source, record.distribution]))
        """
    )

    assert result.json == ["plugin", "rpc-backend-faulty-tensorpipe"]


def test_without_the_plugin_torchs_testing_module_registers(core_only: Environment) -> None:
    result = core_only.run(
        """
        import json, torch.distributed.rpc as rpc
        assert not rpc.backend_registry.backend_registered("FAULTY_TENSORPIPE")
        import torch.distributed.rpc._testing
        import rpc_backends_core
        assert rpc.BackendType.FAULTY_TENSORPIPE.name == "FAULTY_TENSORPIPE"
        record = rpc_backends_core.record("FAULTY_TENSORPIPE")
        print(json.dumps([record.source, record.distribution]))
        """
    )

    assert result.json[0] == "torch"
