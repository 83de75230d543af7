"""Which packages are found, what discovery imports, and what (un)installing packages changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import ChildFailedError, Environment
from support.packages import write_package
from support.samples import (
    BARE_PAIR,
    FAULTY_TENSORPIPE,
    GROUP,
    SLOW_BACKEND,
    TENSORPIPE,
    MakeEnvironment,
    backend_package,
)

SHOW_RECORDS = """
    import json, torch, rpc_backends_core
    print(json.dumps([[r.name, r.source, r.distribution, r.version, r.value, r.state]
                      for r in rpc_backends_core.records()]))
"""


def test_records_name_the_origin_of_each_backend(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    pigeon = backend_package(tmp_path, version="2.5")
    environment = make_environment(TENSORPIPE, pigeon)

    rows = environment.run(SHOW_RECORDS).json
    records = {row[0]: row[1:] for row in rows}

    assert records["PIGEON"] == [
        "plugin",
        "rpc-backend-pigeon",
        "2.5",
        "rpc_backend_pigeon:BACKEND",
        "found",
    ]
    assert [row[1:3] for row in rows if row[0] == "TENSORPIPE"] == [
        ["plugin", "rpc-backend-tensorpipe"],
        ["torch", "torch"],
    ]


def test_discovery_imports_no_plugin(make_environment: MakeEnvironment, tmp_path: Path) -> None:
    """A plugin is imported neither when backends are listed nor when another backend is used."""
    slow = backend_package(tmp_path, SLOW_BACKEND, name="SLOW", distribution="rpc-backend-slow")
    environment = make_environment(backend_package(tmp_path), slow)

    result = environment.run(
        """
        import json, sys, torch.distributed.rpc as rpc, rpc_backends_core

        def plugins():
            return [name for name in sys.modules if name.startswith("rpc_backend_")]

        assert {"PIGEON", "SLOW"} <= {record.name for record in rpc_backends_core.records()}
        assert plugins() == [], plugins()
        rpc_backends_core.refresh()
        assert plugins() == [], plugins()
        rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType.PIGEON)
        print(json.dumps(plugins()))
        """,
        timeout=25,
    )

    assert result.json == ["rpc_backend_pigeon"]


def test_a_bare_pair_of_handlers_is_a_backend(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(backend_package(tmp_path, BARE_PAIR))

    result = environment.run(
        """
        import torch.distributed.rpc as rpc
        import rpc_backend_pigeon
        value = rpc.BackendType.PIGEON.value
        assert value.init_backend_handler is rpc_backend_pigeon.init
        assert value.construct_rpc_backend_options_handler is rpc_backend_pigeon.construct
        options = rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType.PIGEON, 7)
        print(options.rpc_timeout)
        """
    )

    assert result.stdout.strip() == "7.0"


def test_lookup_ignores_case(make_environment: MakeEnvironment, tmp_path: Path) -> None:
    environment = make_environment(backend_package(tmp_path, name="Pigeon"))

    environment.run(
        """
        import torch.distributed.rpc as rpc, rpc_backends_core
        for name in "pigeon", "Pigeon", "PIGEON":
            assert rpc.BackendType[name] is rpc.BackendType.Pigeon
            assert rpc_backends_core.record(name).name == "Pigeon"
        """
    )


def test_a_name_that_is_no_identifier_is_invalid(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    names = ["2PIGEONS", "PIG EON", "PIG-EON"]
    bad = write_package(
        tmp_path,
        "rpc-backend-bad",
        modules={"bad.py": ""},
        entry_points={GROUP: dict.fromkeys(names, "bad:BACKEND")},
    )
    environment = make_environment(bad, backend_package(tmp_path))

    result = environment.run(
        """
        import json, torch.distributed.rpc as rpc, rpc_backends_core
        assert rpc.BackendType.PIGEON.name in dir(rpc.BackendType)
        list(rpc.BackendType)
        bad = [r for r in rpc_backends_core.records() if r.distribution == "rpc-backend-bad"]
        print(json.dumps([[one.name, one.state, str(one.error)] for one in bad]))
        """
    )

    assert sorted(name for name, _, _ in result.json) == names
    for name, state, error in result.json:
        assert state == "invalid"
        assert "rpc-backend-bad" in error
        assert name in error
        assert "identifier" in error


def test_a_distribution_twice_on_the_path_counts_once(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    pigeon = backend_package(tmp_path)
    environment = make_environment(pigeon)
    environment.install_into(tmp_path / "again", pigeon)
    environment.add_path(tmp_path / "again")

    result = environment.run(
        """
        import json, torch.distributed.rpc as rpc, rpc_backends_core
        from importlib.metadata import distributions
        copies = [d for d in distributions() if d.metadata["Name"] == "rpc-backend-pigeon"]
        assert len(copies) == 2, "the test did not install it twice"
        rpc.BackendType.PIGEON.value
        print(json.dumps([r.state for r in rpc_backends_core.records() if r.name == "PIGEON"]))
        """
    )

    assert result.json == ["loaded"]


def test_the_first_of_two_installed_versions_counts(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    """The record describes the copy that Python imports: the first on ``sys.path``."""
    environment = make_environment(backend_package(tmp_path, version="1.0"))
    environment.install_into(tmp_path / "new", backend_package(tmp_path, version="2.0"))

    result = environment.run(
        """
        import json, rpc_backends_core
        print(json.dumps(rpc_backends_core.record("PIGEON").version))
        """,
        env={"PYTHONPATH": str(tmp_path / "new")},
    )

    assert result.json == "2.0"


def test_using_a_name_in_conflict_names_both_packages(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(
        backend_package(tmp_path, name="PIGEON", distribution="rpc-backend-loft"),
        backend_package(tmp_path, name="pigeon", distribution="rpc-backend-coop"),
        TENSORPIPE,
    )

    result = environment.run(
        """
        import json, sys, torch.distributed.rpc as rpc, rpc_backends_core
        rpc.BackendType.TENSORPIPE.value
        states = {r.state for r in rpc_backends_core.records() if r.name.upper() == "PIGEON"}
        texts = []
        for use in (lambda: rpc.BackendType.PIGEON, lambda: rpc.BackendType["PIGEON"],
                    lambda: rpc.init_rpc("worker", backend="PIGEON", rank=0, world_size=1)):
            try:
                use()
            except rpc_backends_core.BackendConflictError as error:
                texts.append(str(error))
        assert "rpc_backend_loft" not in sys.modules and "rpc_backend_coop" not in sys.modules
        print(json.dumps([sorted(states), texts]))
        """
    )

    states, texts = result.json
    assert states == ["conflict"]
    assert len(texts) == 3, texts
    for text in texts:
        assert "rpc-backend-loft" in text
        assert "rpc-backend-coop" in text


def test_two_spellings_of_a_name_conflict(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    package = write_package(
        tmp_path,
        "rpc-backend-twice",
        modules={"twice.py": "A = B = None"},
        entry_points={GROUP: {"PIGEON": "twice:A", "Pigeon": "twice:B"}},
    )

    result = make_environment(package).run(
        """
        import rpc_backends_core, torch.distributed.rpc as rpc
        try:
            rpc.BackendType.PIGEON
        except rpc_backends_core.RpcBackendsError as error:
            print(error)
        """
    )

    assert "rpc-backend-twice" in result.stdout


def test_refresh_finds_a_new_package(make_environment: MakeEnvironment, tmp_path: Path) -> None:
    environment = make_environment(FAULTY_TENSORPIPE)
    code = """
        import torch.distributed.rpc as rpc, rpc_backends_core
        enum, faulty = rpc.BackendType, rpc.BackendType.FAULTY_TENSORPIPE
        assert not rpc.backend_registry.backend_registered("PIGEON")
        print("looked", flush=True)
        input()
        rpc_backends_core.refresh()
        assert rpc.backend_registry.backend_registered("PIGEON")
        assert rpc.BackendType.PIGEON.value
        assert rpc.BackendType is enum and rpc.BackendType.FAULTY_TENSORPIPE is faulty
        """

    with environment.start(code) as process:
        assert process.read_line() == "looked"
        environment.install(backend_package(tmp_path))
        process.write_line()
        process.finish()


def test_refresh_loads_a_repaired_package(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(backend_package(tmp_path, "import no_such_module"))
    code = """
        import torch.distributed.rpc as rpc, rpc_backends_core
        try:
            rpc.BackendType.PIGEON.value
        except rpc_backends_core.BackendLoadError:
            print("failed", flush=True)
        input()
        rpc_backends_core.refresh()
        assert rpc.BackendType.PIGEON.value
        assert rpc_backends_core.record("PIGEON").version == "1.1"
        """

    with environment.start(code) as process:
        assert process.read_line() == "failed"
        environment.uninstall("rpc-backend-pigeon")
        environment.install(backend_package(tmp_path, version="1.1"))
        process.write_line()
        process.finish()


def test_an_uninstalled_package_is_gone(make_environment: MakeEnvironment, tmp_path: Path) -> None:
    environment = make_environment(backend_package(tmp_path), FAULTY_TENSORPIPE)
    code = """
        import json, torch.distributed.rpc as rpc, rpc_backends_core
        print(json.dumps([rpc.backend_registry.backend_registered("PIGEON"),
                          rpc.backend_registry.backend_registered("FAULTY_TENSORPIPE")]))
        """
    assert environment.run(code).json == [True, True]

    environment.uninstall("rpc-backend-pigeon")

    assert environment.run(code).json == [False, True]


def test_uninstalling_tensorpipe_restores_torchs_own(
    make_environment: MakeEnvironment,
) -> None:
    environment = make_environment(TENSORPIPE)
    code = """
        import json, torch.distributed.rpc as rpc, rpc_backends_core
        record = rpc_backends_core.record("TENSORPIPE")
        print(json.dumps([record.source, rpc.BackendType.TENSORPIPE.value[1].__module__]))
        """
    assert environment.run(code).json[0] == "plugin"

    environment.uninstall(TENSORPIPE)

    source, module = environment.run(code).json
    assert source == "torch"
    assert module.startswith("torch.distributed.rpc")


def test_uninstalling_the_core_restores_stock_torch(make_environment: MakeEnvironment) -> None:
    environment = make_environment(TENSORPIPE)
    environment.uninstall("rpc-backends-core")

    result = environment.run(
        "import torch; print([member.name for member in torch.distributed.rpc.BackendType])"
    )

    assert result.stdout.strip() == "['TENSORPIPE']"
    assert result.stderr == ""


def test_an_unknown_name_gets_a_suggestion(
    installed: Environment,
) -> None:
    with pytest.raises(ChildFailedError) as failure:
        installed.run("import torch; torch.distributed.rpc.BackendType.FAULTY_TENSORPIP")

    text = str(failure.value)
    assert "UnknownBackendError" in text
    assert "FAULTY_TENSORPIP" in text
    assert "'FAULTY_TENSORPIPE'" in text or "FAULTY_TENSORPIPE?" in text, text
    assert "TENSORPIPE" in text


def test_a_known_name_says_what_to_install(
    core_only: Environment,
) -> None:
    with pytest.raises(ChildFailedError) as failure:
        core_only.run("import torch; torch.distributed.rpc.BackendType.FAULTY_TENSORPIPE")

    assert "pip install rpc-backend-faulty-tensorpipe" in str(failure.value)


def test_use_does_not_change_the_order_of_members(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(
        TENSORPIPE,
        FAULTY_TENSORPIPE,
        backend_package(tmp_path),
        backend_package(tmp_path, name="ALBATROSS", distribution="rpc-backend-albatross"),
    )
    code = """
        import json, sys, torch.distributed.rpc as rpc
        for name in sys.argv[1:]:
            rpc.BackendType[name].value
        print(json.dumps([member.name for member in rpc.BackendType]))
        """

    first = environment.run(code, "PIGEON", "TENSORPIPE").json
    second = environment.run(code, "FAULTY_TENSORPIPE", "ALBATROSS", "PIGEON").json

    assert first == second
    assert set(first) == {"ALBATROSS", "FAULTY_TENSORPIPE", "PIGEON", "TENSORPIPE"}
