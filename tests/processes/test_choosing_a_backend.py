"""Which backend ``init_rpc`` starts. The tests look at the running agent."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
from torch.distributed import rpc

from support import steps
from support.workers import WorkerContext, Workers


def start(me: WorkerContext, url: str, **arguments: Any) -> list[str]:
    """Start RPC in a group of one with the arguments given; return the class names of its agent.

    The address is set in the environment, where a start without options looks for it.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    rpc.init_rpc(me.name, rank=0, world_size=1, **arguments)
    kinds = [kind.__name__ for kind in type(rpc.api._get_current_rpc_agent()).__mro__]
    assert steps.call_all(me) == {me.name: me.name}
    rpc.shutdown()
    return kinds


def is_faulty(kinds: list[str]) -> bool:
    return "FaultyTensorPipeAgent" in kinds


def is_torchs(kinds: list[str]) -> bool:
    """Return whether the agent's class is torch's own, not a plugin's subclass."""
    return kinds[0] in ("TensorPipeAgent", "FaultyTensorPipeAgent")


# --- the program names no backend ----------------------------------------------------------------


def test_the_installed_tensorpipe_is_the_default(url: str) -> None:
    with Workers(1) as workers:
        kinds = workers[0].call(start, url)

        assert not is_faulty(kinds)
        assert not is_torchs(kinds)


def test_a_default_start_works_after_a_registration(url: str) -> None:
    """In stock torch, any registration breaks every later start with defaults (pytorch issue 104620)."""
    with Workers(1) as workers:
        before = workers[0].call(start, url)

        assert workers[0].call(register_and_start, url) == before


def register_and_start(me: WorkerContext, url: str) -> list[str]:
    held = rpc.BackendType.TENSORPIPE
    rpc.backend_registry.register_backend("MINE", refuse, refuse)
    assert rpc.BackendType.TENSORPIPE is held
    assert start(me, url, backend=held) == start(me, url)
    return start(me, url)


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a backend was called that nobody asked for")


@pytest.mark.parametrize("name", ["FAULTY_TENSORPIPE", "faulty_tensorpipe"])
def test_the_environment_sets_the_default_backend(url: str, name: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DEFAULT": name}) as workers:
        assert is_faulty(workers[0].call(start, url))


def test_a_named_backend_wins_over_the_default_variable(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DEFAULT": "FAULTY_TENSORPIPE"}) as workers:
        assert not is_faulty(workers[0].call(start, url, backend="TENSORPIPE"))


def test_a_misspelt_default_is_an_error_with_a_suggestion(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DEFAULT": "FAULTY_TENSORPIP"}) as workers:
        (failure,) = workers.errors(start, url)

        assert failure.kinds[0] == "SettingError"
        assert "RPC_BACKENDS_DEFAULT='FAULTY_TENSORPIP'" in failure.text
        assert "Did you mean 'FAULTY_TENSORPIPE'?" in failure.text


# --- the program names a backend or passes options -----------------------------------------------


@pytest.mark.parametrize("name", ["FAULTY_TENSORPIPE", "faulty_tensorpipe", "Faulty_TensorPipe"])
def test_a_backend_starts_by_name_in_any_case(url: str, name: str) -> None:
    """Torch's FAULTY_TENSORPIPE has required options: its name alone does not start it."""
    with Workers(1) as workers:
        assert is_faulty(workers[0].call(start, url, backend=name))


def test_an_unknown_name_is_an_error_with_a_suggestion(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(start, url, backend="TENSORPIPES")

        assert failure.kinds[0] == "UnknownBackendError"
        assert "Did you mean 'TENSORPIPE'?" in failure.text


@pytest.mark.parametrize("backend", [3, object, ["TENSORPIPE"]])
def test_a_backend_of_a_wrong_type_raises_torchs_error(url: str, backend: Any) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(start, url, backend=backend)

        assert failure.kinds[0] == "TypeError"
        assert failure.text.startswith("Argument backend must be a member of BackendType")


def test_options_alone_select_their_backend_and_no_other(
    url: str,
) -> None:
    """Stock torch constructs the default options of every backend; one that fails breaks all."""
    with Workers(1) as workers:
        plain, faulty, warnings = workers[0].call(start_by_options, url)

        assert not is_faulty(plain)
        assert is_faulty(faulty)
        # Torch warns when options alone choose a backend other than TENSORPIPE. The core does too.
        assert len(warnings) == 1
        assert "backend='FAULTY_TENSORPIPE'" in warnings[0]


def start_by_options(me: WorkerContext, url: str) -> tuple[list[str], list[str], list[str]]:
    from torch.distributed.rpc._testing import FaultyTensorPipeRpcBackendOptions

    rpc.backend_registry.register_backend("FIRST", refuse, refuse)
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    rpc.logger.addHandler(handler)
    plain = start(
        me,
        url,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=url, _transports=["uv"], _channels=["basic"]
        ),
    )
    faulty = start(
        me,
        url,
        rpc_backend_options=FaultyTensorPipeRpcBackendOptions(
            num_worker_threads=2,
            rpc_timeout=10,
            init_method=url,
            messages_to_fail=[],
            messages_to_delay={},
            num_fail_sends=0,
        ),
    )
    return plain, faulty, warnings


def test_options_of_the_wrong_backend_are_refused(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(start_faulty_with_plain_options, url)

        assert "TypeError" in failure.kinds
        assert "it takes only FaultyTensorPipeRpcBackendOptions" in failure.text
        assert workers.run(steps.is_running) == [False]


def start_faulty_with_plain_options(me: WorkerContext, url: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=url)
    start(me, url, backend="FAULTY_TENSORPIPE", rpc_backend_options=options)


def test_options_of_a_wrong_type_raise_torchs_error(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(start, url, rpc_backend_options={"rpc_timeout": 3})

        assert failure.kinds[0] == "TypeError"
        assert failure.text.startswith(
            "Argument rpc_backend_options must be an instance of RpcBackendOptions"
        )


# --- torch's own backends ------------------------------------------------------------------------


def test_denying_the_plugin_falls_back_to_torchs_tensorpipe(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DENY": "TENSORPIPE"}) as workers:
        assert workers[0].call(start, url)[0] == "TensorPipeAgent"


def test_a_denied_backend_without_fallback_is_refused(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DENY": "FAULTY_TENSORPIPE"}) as workers:
        (failure,) = workers.errors(start, url, backend="FAULTY_TENSORPIPE")

        assert failure.kinds[0] == "BackendDeniedError"
        assert "RPC_BACKENDS_DENY names it" in failure.text


@pytest.mark.parametrize("when", ["before", "after"])
def test_importing_torchs_testing_module_keeps_the_plugin(url: str, when: str) -> None:
    """Importing that module calls ``register_backend("FAULTY_TENSORPIPE", ...)``."""
    with Workers(1) as workers:
        if when == "after":
            assert is_faulty(workers[0].call(start, url, backend="FAULTY_TENSORPIPE"))
        member, seen = workers[0].call(import_testing)

        assert member == "rpc_backend_faulty_tensorpipe.options"
        assert seen == ["plugin", "torch"]
        assert is_faulty(workers[0].call(start, url, backend="FAULTY_TENSORPIPE"))


def import_testing(me: WorkerContext) -> tuple[str, list[str]]:
    import torch.distributed.rpc._testing

    import rpc_backends_core

    assert torch.distributed.rpc._testing
    sources = [
        record.source
        for record in rpc_backends_core.records()
        if record.name == "FAULTY_TENSORPIPE"
    ]
    return rpc.BackendType.FAULTY_TENSORPIPE.value[0].__module__, sources


def test_members_held_from_before_the_install_still_work(url: str) -> None:
    with Workers(1, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, fresh=True) as workers:
        before, after = workers[0].call(take_member_and_install, url)

        assert before == "TensorPipeAgent"
        assert after != "TensorPipeAgent"
        assert workers[0].call(uninstall_and_start, url) == "TensorPipeAgent"


def take_member_and_install(me: WorkerContext, url: str) -> tuple[str, str]:
    import rpc_backends_core

    assert not rpc_backends_core.is_installed()
    held = rpc.BackendType.TENSORPIPE
    before = start(me, url, backend=held)
    rpc_backends_core.install()
    assert rpc.BackendType.TENSORPIPE is not held
    return before[0], start(me, url, backend=held)[0]


def uninstall_and_start(me: WorkerContext, url: str) -> str:
    import rpc_backends_core

    rpc_backends_core.uninstall()
    return start(me, url)[0]


def test_autoload_0_leaves_torch_unchanged(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_AUTOLOAD": "0"}, fresh=True) as workers:
        assert workers[0].call(start, url)[0] == "TensorPipeAgent"
