"""The registry's functions have the names, signatures and errors of torch's."""

from __future__ import annotations

import inspect
import math
import socket
import sys
from typing import Any, NoReturn

import pytest
import torch.distributed as dist
from torch.distributed import rpc

import rpc_backends_core
from core.kit import Site, calls
from rpc_backends_core import _api as api
from rpc_backends_core import _patches as patches
from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._bridge import session, torch_internals
from rpc_backends_core._errors import (
    BackendConflictError,
    BackendLoadError,
    StoreError,
    UnknownBackendError,
)
from rpc_backends_core._registry import Registry

B: Any = BackendType
REGISTRY = "torch.distributed.rpc.backend_registry"
RPC = "torch.distributed.rpc"


def construct(rpc_timeout: float, init_method: str, **options: Any) -> Any:
    return {"rpc_timeout": rpc_timeout, "init_method": init_method, **options}


def init(store: Any, name: Any, rank: Any, world_size: Any, rpc_backend_options: Any) -> Any:
    return (store, name, rank, world_size, rpc_backend_options)


# --- signatures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (REGISTRY, "backend_registered"),
        (REGISTRY, "register_backend"),
        (REGISTRY, "construct_rpc_backend_options"),
        (REGISTRY, "init_backend"),
        (RPC, "init_rpc"),
        (RPC, "shutdown"),
        ("torch.distributed.rpc.api", "shutdown"),
    ],
)
def test_replaced_functions_keep_torchs_signatures(module: str, name: str) -> None:
    patches.install()
    ours = getattr(sys.modules[module], name)
    torchs = torch_internals.original(module, name)
    assert ours is not torchs

    def shape(function: Any) -> list[Any]:
        parameters = inspect.signature(function).parameters.values()
        return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]

    assert shape(ours) == shape(torchs)


def test_the_internal_start_keeps_torchs_parameters() -> None:
    patches.install()
    torchs = inspect.signature(torch_internals.original(RPC, "_init_rpc_backend"))
    ours = inspect.signature(rpc._init_rpc_backend)
    # Only names are compared: torch's default for the backend is a member of the replaced enum.
    assert list(ours.parameters) == list(torchs.parameters)


@pytest.mark.parametrize(
    "name",
    ["backend_registered", "register_backend", "construct_rpc_backend_options", "init_backend"],
)
def test_the_api_has_the_same_signatures(name: str) -> None:
    patches.install()
    here = inspect.signature(getattr(api, name)).parameters
    there = inspect.signature(getattr(rpc, name)).parameters
    assert list(here) == list(there)
    assert [parameter.default for parameter in here.values()] == [
        parameter.default for parameter in there.values()
    ]


# --- register_backend ------------------------------------------------------------------------------


def test_register_backend_returns_the_member(registry: Registry) -> None:
    member = api.register_backend("MINE", construct, init)
    assert member is B.MINE


def test_registering_a_taken_name_raises_torchs_error(registry: Registry) -> None:
    api.register_backend("MINE", construct, init)
    with pytest.raises(RuntimeError, match=r"^RPC backend .+: already registered$"):
        api.register_backend("MINE", construct, init)


@pytest.mark.parametrize("where", [api, patches])
def test_a_registration_records_the_calling_module(registry: Registry, where: Any) -> None:
    where.register_backend("MINE", construct, init)
    record = api.record("MINE")
    assert (record.source, record.distribution) == ("process", __name__)


def test_registrations_by_torchs_modules_are_torchs_own(site: Site, registry: Registry) -> None:
    site.add_backend("FAULTY")
    caller: dict[str, Any] = {"__name__": "torch.distributed.rpc._testing.some_module"}
    exec("def register(*args): return register_backend(*args)", caller)
    caller["register_backend"] = patches.register_backend
    caller["register"]("FAULTY", construct, init)
    assert api.record("FAULTY").source == "plugin"
    assert [(record.source, record.state) for record in api.records()] == [
        ("plugin", "found"),
        ("torch", "shadowed"),
    ]


@pytest.mark.parametrize("name", ["my-backend", "lower", "_PRIVATE", "with space"])
def test_every_name_that_torch_accepts_is_accepted(registry: Registry, name: str) -> None:
    member = api.register_backend(name, construct, init)
    assert B[name] is member
    assert api.backend_registered(name)
    assert member in list(BackendType)


def test_unregister_undoes_a_registration(registry: Registry) -> None:
    api.register_backend("MINE", construct, init)
    api.unregister_backend("MINE")
    assert api.backend_registered("MINE") is False
    with pytest.raises(UnknownBackendError, match="cannot be unregistered"):
        api.unregister_backend("MINE")


# --- backend_registered ----------------------------------------------------------------------------


def test_backend_registered_is_true_for_usable_backends(site: Site, with_torchs: Registry) -> None:
    module = site.add_backend("PIGEON")
    site.add("dist-a", backends={"CLAIMED": "a:X"})
    site.add("dist-b", backends={"CLAIMED": "b:X"})
    api.register_backend("MINE", construct, init)
    asked = ["TENSORPIPE", "PIGEON", "MINE", "CLAIMED", "NOTHING", ""]
    assert [api.backend_registered(name) for name in asked] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert calls(module) == []


# --- construct_rpc_backend_options and init_backend ------------------------------------------------


def test_options_get_torchs_defaults_and_given_keywords(
    registry: Registry,
) -> None:
    member = api.register_backend("MINE", construct, init)
    assert api.construct_rpc_backend_options(member) == {
        "rpc_timeout": 60.0,
        "init_method": "env://",
    }
    assert api.construct_rpc_backend_options(
        backend=member, rpc_timeout=5, init_method="file:///x", window=3
    ) == {"rpc_timeout": 5, "init_method": "file:///x", "window": 3}


def test_init_backend_passes_its_arguments_on(registry: Registry) -> None:
    member = api.register_backend("MINE", construct, init)
    agent = api.init_backend(
        member, "store", name="w", rank=1, world_size=None, rpc_backend_options="options"
    )
    assert agent == ("store", "w", 1, None, "options")


@pytest.mark.parametrize("how", ["member", "name", "name in another case"])
def test_a_backend_may_be_a_member_or_a_name(registry: Registry, how: str) -> None:
    member = api.register_backend("MINE", construct, init)
    backend = {"member": member, "name": "MINE", "name in another case": "mine"}[how]
    assert api.construct_rpc_backend_options(backend)["rpc_timeout"] == 60.0


@pytest.mark.parametrize("backend", [None, 5, object(), [], b"MINE"])
def test_other_objects_are_refused_with_torchs_text(registry: Registry, backend: Any) -> None:
    for function in (api.construct_rpc_backend_options, api.init_backend):
        with pytest.raises(TypeError, match="Argument backend must be a member of BackendType"):
            function(backend)


def test_a_backends_own_exception_reaches_the_caller_unchanged(registry: Registry) -> None:
    error = LookupError("mine")

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise error

    api.register_backend("MINE", failing, failing)
    for function in (api.construct_rpc_backend_options, api.init_backend):
        with pytest.raises(LookupError) as caught:
            function("MINE")
        assert caught.value is error
        assert caught.value.__cause__ is None


# --- records ---------------------------------------------------------------------------------------


def test_records_show_usable_and_unusable_backends(site: Site, with_torchs: Registry) -> None:
    site.add_backend("PIGEON")
    site.add_backend("ODD", "raise OSError('boom')")
    site.add("dist-a", backends={"bad-name": "a:X"})
    with pytest.raises(BackendLoadError):
        _ = B.ODD.value
    states = {record.name: record.state for record in api.records()}
    assert states == {
        "TENSORPIPE": "registered",
        "PIGEON": "found",
        "ODD": "failed",
        "bad-name": "invalid",
    }


def test_a_record_is_that_of_the_usable_backend(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("TENSORPIPE")
    assert api.record("tensorpipe").source == "plugin"
    monkeypatch.setenv("RPC_BACKENDS_DENY", "TENSORPIPE")
    api.refresh()
    assert api.record("TENSORPIPE").source == "torch"


@pytest.mark.parametrize(
    ("name", "state"), [("CLAIMED", "conflict"), ("my-name", "invalid"), ("DENIED", "denied")]
)
def test_the_record_of_an_unusable_name_gives_the_reason(
    site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str, state: str
) -> None:
    site.add("dist-a", backends={"CLAIMED": "a:X", "my-name": "a:Y", "DENIED": "a:Z"})
    site.add("dist-b", backends={"CLAIMED": "b:X"})
    monkeypatch.setenv("RPC_BACKENDS_DENY", "DENIED")
    record = api.record(name)
    assert (record.state, record.name) == (state, name)
    assert record.error is not None


def test_the_record_of_an_unknown_name_is_an_error(registry: Registry) -> None:
    with pytest.raises(UnknownBackendError, match="'NOTHING'"):
        api.record("NOTHING")


def test_refresh_returns_all_records(site: Site, registry: Registry) -> None:
    assert api.records() == []
    site.add("dist-a", backends={"CLAIMED": "a:X"})
    site.add("dist-b", backends={"CLAIMED": "b:X"})
    assert [record.state for record in api.refresh()] == ["conflict", "conflict"]
    with pytest.raises(BackendConflictError):
        _ = B.CLAIMED


def test_record_is_a_function_not_the_module(site: Site, registry: Registry) -> None:
    site.add_backend("PIGEON")
    assert [record.name for record in rpc_backends_core.records()] == ["PIGEON"]
    assert rpc_backends_core.record("PIGEON").name == "PIGEON"


# --- without a running agent -----------------------------------------------------------------------


def test_shutdown_without_a_running_agent_raises_torchs_error() -> None:
    patches.install()
    with pytest.raises(RuntimeError, match="RPC has not been initialized"):
        rpc.shutdown()


def test_init_rpc_refuses_wrong_arguments_with_torchs_errors() -> None:
    patches.install()
    with pytest.raises(TypeError, match="Argument backend must be a member of BackendType"):
        rpc.init_rpc("w", backend=5, rank=0, world_size=1)
    with pytest.raises(TypeError, match="rpc_backend_options must be an instance of RpcBackendO"):
        rpc.init_rpc("w", rank=0, world_size=1, rpc_backend_options={})
    with pytest.raises(
        RuntimeError,
        match=r"Argument 7 .the argument name of init_rpc. must be of type <class 'str'>",
    ):
        rpc.init_rpc(7, backend="TENSORPIPE", rank=0, world_size=1)


def refusal(kind: type[Exception], *, url: str = "env://", **arguments: Any) -> str:
    """Return the error of `init_rpc`."""
    patches.install()
    options = rpc.TensorPipeRpcBackendOptions(init_method=url)
    given = {"name": "w", "rank": 0, "world_size": 1, "rpc_backend_options": options, **arguments}
    with pytest.raises(kind) as error:
        rpc.init_rpc(**given)
    assert not getattr(error.value, "__notes__", [])
    return str(error.value)


@pytest.mark.parametrize(("rank", "size"), [(-5, 2), (2, 2), (3, 2)])
def test_a_rank_outside_the_group_is_refused_at_once(rank: int, size: int) -> None:
    text = refusal(ValueError, rank=rank, world_size=size)
    assert text == f"rank is {rank} for RPC worker 'w'; it must be from 0 to 1, as world_size is 2."


def test_an_invalid_name_is_shown() -> None:
    assert refusal(RuntimeError, name="a b").startswith("name is 'a b'. Worker name must match ")


@pytest.mark.parametrize(
    ("url", "kind", "text"),
    [
        ("bogus://x", RuntimeError, "No rendezvous handler for bogus://. Use env:// with"),
        ("tcp://127.0.0.1", ValueError, "port number missing. Use env:// with"),
        ("tcp://127.0.0.1:99999", ValueError, "Port out of range 0-65535. Use"),
        ("file://", ValueError, "path missing. Use"),
    ],
)
def test_an_init_method_that_torch_refuses_is_shown(
    url: str, kind: type[Exception], text: str
) -> None:
    error = refusal(kind, url=url)
    assert error.startswith(f"RPC worker 'w' cannot use init_method {url!r}: ")
    assert text in error


def test_a_missing_rank_is_an_error_with_the_remedy() -> None:
    text = refusal(ValueError, url="tcp://127.0.0.1:1", rank=-1)
    assert text.endswith("rank parameter missing. Pass rank to init_rpc.")


def test_an_address_that_another_process_has_is_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_HOST_GRACE_PERIOD", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert refusal(StoreError, url=url) == (
            f"RPC worker 'w' (rank 0) cannot host the group's store at {url}: something else uses that "
            "port. Choose another port, in MASTER_PORT or in init_method, or end the process that has it."
        )


def test_a_taken_port_is_shown_if_the_rank_is_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_HOST_GRACE_PERIOD", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        text = refusal(StoreError, rank=-1)
    assert "cannot host the group's store at env://: something else uses that port." in text


def test_a_port_that_this_user_may_not_use_is_an_error_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> NoReturn:
        """Raise what torch 2.13 raises for a port below 1024, which root may use."""
        raise dist.DistNetworkError(
            "The server socket has failed to bind. port: 80, useIpv6: 0, code: -13, name: EACCES, "
            "message: permission denied"
        )

    monkeypatch.setattr(session, "_HOST_GRACE_PERIOD", 0.0)
    monkeypatch.setattr(session, "meet", refuse)
    assert refusal(StoreError, url="tcp://127.0.0.1:80") == (
        "RPC worker 'w' (rank 0) cannot host the group's store at tcp://127.0.0.1:80: this user may not "
        "use that port. Choose another port, in MASTER_PORT or in init_method."
    )


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (
            {"rpc_timeout": math.nan},
            "rpc_timeout=nan is out of range; TENSORPIPE needs 0 or more sec",
        ),
        (
            {"rpc_timeout": -1},
            "rpc_timeout=-1 is out of range; TENSORPIPE needs 0 or more seconds.",
        ),
        (
            {"rpc_timeout": "5"},
            "rpc_timeout='5' is of type str; TENSORPIPE needs a number of seconds.",
        ),
        (
            {"init_method": None},
            "init_method=None is of type NoneType; TENSORPIPE needs a str: the URL",
        ),
        (
            {"num_worker_threads": "4"},
            "num_worker_threads='4' is of type str; TENSORPIPE needs an int.",
        ),
    ],
)
@pytest.mark.parametrize("is_class", [True, False])
def test_a_wrong_value_of_an_option_is_shown(
    option: dict[str, Any], text: str, *, is_class: bool
) -> None:
    patches.install()
    construct = rpc.backend_registry.construct_rpc_backend_options
    with pytest.raises((RuntimeError, TypeError)) as error:
        if is_class:
            rpc.TensorPipeRpcBackendOptions(**option)
        else:
            construct(rpc.BackendType.TENSORPIPE, **option)
    assert str(error.value).startswith(text)
    assert not getattr(error.value, "__notes__", [])
