"""Environment variables that choose and refuse backends, in separate processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.environments import Environment
from support.samples import FAULTY_TENSORPIPE, TENSORPIPE, MakeEnvironment, backend_package

# Use each backend named on the command line; print the errors by name.
ASK = """
    import json, sys, torch.distributed.rpc as rpc, rpc_backends_core
    answers = {}
    for name in sys.argv[1:]:
        try:
            rpc.backend_registry.construct_rpc_backend_options(rpc.BackendType[name])
            answers[name] = None
        except rpc_backends_core.RpcBackendsError as error:
            answers[name] = [type(error).__name__, str(error)]
    print(json.dumps(answers))
"""


def test_deny_refuses_a_backend_and_names_the_variable(installed: Environment) -> None:
    answers = installed.run(
        ASK,
        "FAULTY_TENSORPIPE",
        "TENSORPIPE",
        env={"RPC_BACKENDS_DENY": "FAULTY_TENSORPIPE"},
    ).json

    assert answers["TENSORPIPE"] is None
    kind, text = answers["FAULTY_TENSORPIPE"]
    assert kind == "BackendDeniedError"
    assert "RPC_BACKENDS_DENY" in text
    assert "rpc-backend-faulty-tensorpipe" in text


def test_allow_refuses_every_other_backend(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(TENSORPIPE, FAULTY_TENSORPIPE, backend_package(tmp_path))

    answers = environment.run(
        ASK,
        "PIGEON",
        "TENSORPIPE",
        "FAULTY_TENSORPIPE",
        env={"RPC_BACKENDS_ALLOW": "tensorpipe, FAULTY_TENSORPIPE"},
    ).json

    assert answers["TENSORPIPE"] is None
    assert answers["FAULTY_TENSORPIPE"] is None
    kind, text = answers["PIGEON"]
    assert kind == "BackendDeniedError"
    assert "RPC_BACKENDS_ALLOW" in text


def test_a_denied_plugin_is_recorded_and_never_imported(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(backend_package(tmp_path, "raise SystemExit('imported')"))

    result = environment.run(
        """
        import json, sys, torch.distributed.rpc as rpc, rpc_backends_core
        list(rpc.BackendType)
        for use in (lambda: rpc.BackendType.PIGEON.value,
                    lambda: rpc.init_rpc("worker", backend="PIGEON", rank=0, world_size=1)):
            try:
                use()
            except rpc_backends_core.BackendDeniedError:
                pass
        record = rpc_backends_core.record("PIGEON")
        print(json.dumps([record.state, "rpc_backend_pigeon" in sys.modules]))
        """,
        env={"RPC_BACKENDS_DENY": "PIGEON"},
    )

    assert result.json == ["denied", False]


def test_denying_a_name_in_conflict_denies_both_packages(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment(
        backend_package(tmp_path, distribution="rpc-backend-loft"),
        backend_package(tmp_path, distribution="rpc-backend-coop"),
    )

    answers = environment.run(ASK, "PIGEON", env={"RPC_BACKENDS_DENY": "PIGEON"}).json

    assert answers["PIGEON"][0] == "BackendDeniedError"


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_ALLOW", "RPC_BACKENDS_DENY"])
def test_a_misspelt_name_is_an_error_with_a_suggestion(
    installed: Environment, variable: str
) -> None:
    answers = installed.run(ASK, "FAULTY_TENSORPIPE", env={variable: "FAULTY_TENSORPIP"}).json

    kind, text = answers["FAULTY_TENSORPIPE"]
    assert kind == "SettingError"
    assert variable in text
    assert "Did you mean 'FAULTY_TENSORPIPE'" in text, text


@pytest.mark.parametrize("text", ["TENSORPIPE,,PIGEON", "TENSORPIPE;PIGEON", "*", "TENSORPIPE,"])
def test_a_malformed_list_is_an_error_that_shows_it(installed: Environment, text: str) -> None:
    answers = installed.run(ASK, "TENSORPIPE", env={"RPC_BACKENDS_DENY": text}).json

    assert answers["TENSORPIPE"][0] == "SettingError"
    assert text in answers["TENSORPIPE"][1]


def test_wrong_settings_do_not_break_import_torch(installed: Environment) -> None:
    result = installed.run(
        "import torch",
        env={"RPC_BACKENDS_ALLOW": ";;", "RPC_BACKENDS_DENY": ";;", "RPC_BACKENDS_DEFAULT": ";;"},
    )

    assert result.stderr == ""


def test_the_variable_sets_the_default_backend(installed: Environment) -> None:
    results = installed.run_workers(
        """
        import json, os, torch, torch.distributed.rpc as rpc
        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        kinds = [kind.__name__ for kind in type(rpc.api._get_current_rpc_agent()).__mro__]
        total = rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(2), 1)).sum().item()
        rpc.shutdown()
        print(json.dumps(["FaultyTensorPipeAgent" in kinds, total]))
        """,
        env={"RPC_BACKENDS_DEFAULT": "faulty_tensorpipe"},
    )

    assert [result.json for result in results] == [[True, 4.0]] * 2


def test_a_named_backend_wins_over_the_default(
    installed: Environment,
) -> None:
    result = installed.run(
        """
        import torch.distributed.rpc as rpc
        rpc.init_rpc("worker", backend="TENSORPIPE", rank=0, world_size=1)
        kinds = [kind.__name__ for kind in type(rpc.api._get_current_rpc_agent()).__mro__]
        print("FaultyTensorPipeAgent" in kinds, "TensorPipeAgent" in kinds)
        rpc.shutdown()
        """,
        env={
            "RPC_BACKENDS_DEFAULT": "FAULTY_TENSORPIPE",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
        },
    )

    assert result.stdout.split() == ["False", "True"]


def test_an_unknown_default_names_the_variable(installed: Environment) -> None:
    result = installed.run(
        """
        import json, torch.distributed.rpc as rpc, rpc_backends_core
        try:
            rpc.init_rpc("worker", rank=0, world_size=1)
        except rpc_backends_core.RpcBackendsError as error:
            print(json.dumps(str(error)))
        """,
        env={"RPC_BACKENDS_DEFAULT": "FAULTY_TENSORPIP"},
    )

    assert "RPC_BACKENDS_DEFAULT" in result.json
    assert "'FAULTY_TENSORPIPE'" in result.json, json.dumps(result.json)
