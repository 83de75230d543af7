"""Which backend a start uses, seen by the agent that runs."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
from torch.distributed import rpc

from support import steps
from support.workers import Me, Workers


def start(me: Me, url: str, **arguments: Any) -> list[str]:
    """Start RPC in a group of one with the arguments given; return what has been started.

    The address comes from the environment, so that a start without options finds it.
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
    """Return whether the agent is torch's class itself, and no plugin's that derives from it."""
    return kinds[0] in ("TensorPipeAgent", "FaultyTensorPipeAgent")


# --- a program that names none -------------------------------------------------------------------


def test_a_start_that_names_nothing_uses_the_installed_tensorpipe(url: str) -> None:
    with Workers(1) as workers:
        kinds = workers[0].call(start, url)

        assert not is_faulty(kinds)
        assert not is_torchs(kinds)


def test_it_works_after_a_registration(url: str) -> None:
    """With stock torch any registration breaks every plain start (pytorch issue 104620)."""
    with Workers(1) as workers:
        before = workers[0].call(start, url)

        assert workers[0].call(register_and_start, url) == before


def register_and_start(me: Me, url: str) -> list[str]:
    held = rpc.BackendType.TENSORPIPE
    rpc.backend_registry.register_backend("MINE", refuse, refuse)
    assert rpc.BackendType.TENSORPIPE is held
    assert start(me, url, backend=held) == start(me, url)
    return start(me, url)


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a backend that nobody asked for was called")


@pytest.mark.parametrize("name", ["FAULTY_TENSORPIPE", "faulty_tensorpipe"])
def test_the_environment_decides_where_the_program_names_none(url: str, name: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DEFAULT": name}) as workers:
        assert is_faulty(workers[0].call(start, url))


def test_the_environment_does_not_overrule_a_program_that_names_one(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DEFAULT": "FAULTY_TENSORPIPE"}) as workers:
        assert not is_faulty(workers[0].call(start, url, backend="TENSORPIPE"))


def test_a_typo_in_the_environment_is_an_error_that_says_so(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DEFAULT": "FAULTY_TENSORPIP"}) as workers:
        (failure,) = workers.errors(start, url)

        assert failure.kinds[0] == "SettingError"
        assert "RPC_BACKENDS_DEFAULT='FAULTY_TENSORPIP'" in failure.text
        assert "Did you mean 'FAULTY_TENSORPIPE'?" in failure.text


# --- a program that names one, or gives options --------------------------------------------------


@pytest.mark.parametrize("name", ["FAULTY_TENSORPIPE", "faulty_tensorpipe", "Faulty_TensorPipe"])
def test_a_name_is_enough_in_any_case_and_every_option_has_a_default(url: str, name: str) -> None:
    """Torch's FAULTY_TENSORPIPE has required options, and cannot be started by its name alone."""
    with Workers(1) as workers:
        assert is_faulty(workers[0].call(start, url, backend=name))


def test_an_unknown_name_is_an_error_with_the_nearest(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(start, url, backend="TENSORPIPES")

        assert failure.kinds[0] == "UnknownBackendError"
        assert "Did you mean 'TENSORPIPE'?" in failure.text


@pytest.mark.parametrize("backend", [3, object, ["TENSORPIPE"]])
def test_what_is_no_backend_is_torchs_type_error(url: str, backend: Any) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(start, url, backend=backend)

        assert failure.kinds[0] == "TypeError"
        assert failure.text.startswith("Argument backend must be a member of BackendType")


def test_options_without_a_backend_find_theirs_and_construct_no_others(
    url: str,
) -> None:
    """Stock torch default-constructs the options of every backend, and one that cannot breaks all."""
    with Workers(1) as workers:
        plain, faulty, said = workers[0].call(start_by_options, url)

        assert not is_faulty(plain)
        assert is_faulty(faulty)
        # Torch warns when options alone choose another backend than TENSORPIPE; so do we.
        assert len(said) == 1
        assert "backend='FAULTY_TENSORPIPE'" in said[0]


def start_by_options(me: Me, url: str) -> tuple[list[str], list[str], list[str]]:
    from torch.distributed.rpc._testing import FaultyTensorPipeRpcBackendOptions

    rpc.backend_registry.register_backend("FIRST", refuse, refuse)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
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
    return plain, faulty, said


def test_options_of_the_wrong_backend_are_refused(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(start_faulty_with_plain_options, url)

        assert failure.kinds[0] == "TypeError"
        assert "must be a `FaultyTensorPipeRpcBackendOptions`" in failure.text
        assert workers.run(steps.is_running) == [False]


def start_faulty_with_plain_options(me: Me, url: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=url)
    start(me, url, backend="FAULTY_TENSORPIPE", rpc_backend_options=options)


def test_options_that_are_none_are_torchs_type_error(url: str) -> None:
    with Workers(1) as workers:
        (failure,) = workers.errors(start, url, rpc_backend_options={"rpc_timeout": 3})

        assert failure.kinds[0] == "TypeError"
        assert failure.text.startswith(
            "Argument rpc_backend_options must be an instance of RpcBackendOptions"
        )


# --- torch's own ---------------------------------------------------------------------------------


def test_torchs_own_tensorpipe_is_used_where_the_plugin_is_denied(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DENY": "TENSORPIPE"}) as workers:
        assert workers[0].call(start, url)[0] == "TensorPipeAgent"


def test_a_denied_plugin_that_torch_has_no_other_of_is_refused(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_DENY": "FAULTY_TENSORPIPE"}) as workers:
        (failure,) = workers.errors(start, url, backend="FAULTY_TENSORPIPE")

        assert failure.kinds[0] == "BackendDeniedError"
        assert "RPC_BACKENDS_DENY names it" in failure.text


@pytest.mark.parametrize("when", ["before", "after"])
def test_torchs_testing_module_neither_raises_nor_takes_the_name_from_the_plugin(
    url: str, when: str
) -> None:
    """Its import calls ``register_backend("FAULTY_TENSORPIPE", ...)``."""
    with Workers(1) as workers:
        if when == "after":
            assert is_faulty(workers[0].call(start, url, backend="FAULTY_TENSORPIPE"))
        member, seen = workers[0].call(import_testing)

        assert member == "rpc_backend_faulty_tensorpipe.options"
        assert seen == ["plugin", "torch"]
        assert is_faulty(workers[0].call(start, url, backend="FAULTY_TENSORPIPE"))


def import_testing(me: Me) -> tuple[str, list[str]]:
    import torch.distributed.rpc._testing

    import rpc_backends_core

    assert torch.distributed.rpc._testing
    sources = [
        record.source
        for record in rpc_backends_core.records()
        if record.name == "FAULTY_TENSORPIPE"
    ]
    return rpc.BackendType.FAULTY_TENSORPIPE.value[0].__module__, sources


def test_a_member_of_torchs_own_enum_taken_before_the_install_is_understood(url: str) -> None:
    with Workers(1, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, fresh=True) as workers:
        before, after = workers[0].call(take_member_and_install, url)

        assert before == "TensorPipeAgent"
        assert after != "TensorPipeAgent"
        assert workers[0].call(uninstall_and_start, url) == "TensorPipeAgent"


def take_member_and_install(me: Me, url: str) -> tuple[str, str]:
    import rpc_backends_core

    assert not rpc_backends_core.is_installed()
    held = rpc.BackendType.TENSORPIPE
    before = start(me, url, backend=held)
    rpc_backends_core.install()
    assert rpc.BackendType.TENSORPIPE is not held
    return before[0], start(me, url, backend=held)[0]


def uninstall_and_start(me: Me, url: str) -> str:
    import rpc_backends_core

    rpc_backends_core.uninstall()
    return start(me, url)[0]


def test_switched_off_by_its_variable_torch_is_as_it_was(url: str) -> None:
    with Workers(1, env={"RPC_BACKENDS_AUTOLOAD": "0"}, fresh=True) as workers:
        assert workers[0].call(start, url)[0] == "TensorPipeAgent"
