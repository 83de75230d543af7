"""The registry's functions have torch's names, signatures and errors."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
from torch.distributed import rpc

import rpc_backends_core
from core.kit import Site, calls
from rpc_backends_core import _api as functions
from rpc_backends_core import _patches as patches
from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._errors import BackendConflictError, BackendLoadError, UnknownBackendError
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
def test_a_function_in_torchs_place_is_called_as_torchs_is(module: str, name: str) -> None:
    patches.install()
    ours = getattr(sys.modules[module], name)
    torchs = torch_internals.original(module, name)
    assert ours is not torchs

    def shape(function: Any) -> list[Any]:
        parameters = inspect.signature(function).parameters.values()
        return [(one.name, one.kind, one.default) for one in parameters]

    assert shape(ours) == shape(torchs)


def test_the_internal_start_takes_torchs_arguments_too() -> None:
    patches.install()
    torchs = inspect.signature(torch_internals.original(RPC, "_init_rpc_backend"))
    ours = inspect.signature(rpc._init_rpc_backend)
    # Torch's default backend is a member of an enum that is not in use any more.
    assert list(ours.parameters) == list(torchs.parameters)


@pytest.mark.parametrize(
    "name",
    ["backend_registered", "register_backend", "construct_rpc_backend_options", "init_backend"],
)
def test_a_function_of_ours_is_called_as_the_one_in_torchs_place(name: str) -> None:
    patches.install()
    here = inspect.signature(getattr(functions, name)).parameters
    there = inspect.signature(getattr(rpc, name)).parameters
    assert list(here) == list(there)
    assert [one.default for one in here.values()] == [one.default for one in there.values()]


# --- register_backend ------------------------------------------------------------------------------


def test_register_backend_returns_the_member(registry: Registry) -> None:
    member = functions.register_backend("MINE", construct, init)
    assert member is B.MINE


def test_registering_a_taken_name_raises_torchs_error(registry: Registry) -> None:
    functions.register_backend("MINE", construct, init)
    with pytest.raises(RuntimeError, match=r"^RPC backend .+: already registered$"):
        functions.register_backend("MINE", construct, init)


@pytest.mark.parametrize("where", [functions, patches])
def test_a_registration_is_recorded_under_the_module_that_called(
    registry: Registry, where: Any
) -> None:
    where.register_backend("MINE", construct, init)
    record = functions.record("MINE")
    assert (record.source, record.distribution) == ("process", __name__)


def test_what_a_module_of_torch_registers_is_torchs_own(site: Site, registry: Registry) -> None:
    site.add_backend("FAULTY")
    caller: dict[str, Any] = {"__name__": "torch.distributed.rpc._testing.some_module"}
    exec("def register(*args): return register_backend(*args)", caller)
    caller["register_backend"] = patches.register_backend
    caller["register"]("FAULTY", construct, init)
    assert functions.record("FAULTY").source == "plugin"
    assert [(one.source, one.state) for one in functions.records()] == [
        ("plugin", "found"),
        ("torch", "shadowed"),
    ]


@pytest.mark.parametrize("name", ["my-backend", "lower", "_PRIVATE", "with space"])
def test_any_name_that_torch_takes_is_taken_and_found_as_an_item(
    registry: Registry, name: str
) -> None:
    member = functions.register_backend(name, construct, init)
    assert B[name] is member
    assert functions.backend_registered(name)
    assert member in list(BackendType)


def test_unregister_undoes_a_registration(registry: Registry) -> None:
    functions.register_backend("MINE", construct, init)
    functions.unregister_backend("MINE")
    assert functions.backend_registered("MINE") is False
    with pytest.raises(UnknownBackendError, match="cannot be unregistered"):
        functions.unregister_backend("MINE")


# --- backend_registered ----------------------------------------------------------------------------


def test_backend_registered_is_true_for_each_backend_that_can_be_asked_for(
    site: Site, with_torchs: Registry
) -> None:
    module = site.add_backend("PIGEON")
    site.add("dist-a", backends={"CLAIMED": "a:X"})
    site.add("dist-b", backends={"CLAIMED": "b:X"})
    functions.register_backend("MINE", construct, init)
    asked = ["TENSORPIPE", "PIGEON", "MINE", "CLAIMED", "NOTHING", ""]
    assert [functions.backend_registered(name) for name in asked] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert calls(module) == []


# --- construct_rpc_backend_options and init_backend ------------------------------------------------


def test_options_are_constructed_with_torchs_defaults_and_the_programs_keywords(
    registry: Registry,
) -> None:
    member = functions.register_backend("MINE", construct, init)
    assert functions.construct_rpc_backend_options(member) == {
        "rpc_timeout": 60.0,
        "init_method": "env://",
    }
    assert functions.construct_rpc_backend_options(
        backend=member, rpc_timeout=5, init_method="file:///x", window=3
    ) == {"rpc_timeout": 5, "init_method": "file:///x", "window": 3}


def test_the_agent_is_made_with_the_arguments_that_were_given(registry: Registry) -> None:
    member = functions.register_backend("MINE", construct, init)
    agent = functions.init_backend(
        member, "store", name="w", rank=1, world_size=None, rpc_backend_options="options"
    )
    assert agent == ("store", "w", 1, None, "options")


@pytest.mark.parametrize("how", ["member", "name", "name in another case"])
def test_a_backend_is_given_as_a_member_or_a_name(registry: Registry, how: str) -> None:
    member = functions.register_backend("MINE", construct, init)
    backend = {"member": member, "name": "MINE", "name in another case": "mine"}[how]
    assert functions.construct_rpc_backend_options(backend)["rpc_timeout"] == 60.0


@pytest.mark.parametrize("backend", [None, 5, object(), [], b"MINE"])
def test_what_is_no_backend_is_refused_with_torchs_text(registry: Registry, backend: Any) -> None:
    for function in (functions.construct_rpc_backend_options, functions.init_backend):
        with pytest.raises(TypeError, match="Argument backend must be a member of BackendType"):
            function(backend)


def test_a_backends_own_exception_reaches_the_caller_unchanged(registry: Registry) -> None:
    error = LookupError("mine")

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise error

    functions.register_backend("MINE", failing, failing)
    for function in (functions.construct_rpc_backend_options, functions.init_backend):
        with pytest.raises(LookupError) as caught:
            function("MINE")
        assert caught.value is error
        assert caught.value.__cause__ is None


# --- records ---------------------------------------------------------------------------------------


def test_records_show_what_can_be_used_and_what_cannot(site: Site, with_torchs: Registry) -> None:
    site.add_backend("PIGEON")
    site.add_backend("ODD", "raise OSError('boom')")
    site.add("dist-a", backends={"bad-name": "a:X"})
    with pytest.raises(BackendLoadError):
        _ = B.ODD.value
    found = {record.name: record.state for record in functions.records()}
    assert found == {
        "TENSORPIPE": "registered",
        "PIGEON": "found",
        "ODD": "failed",
        "bad-name": "invalid",
    }


def test_the_record_of_a_name_is_of_the_backend_that_the_name_finds(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("TENSORPIPE")
    assert functions.record("tensorpipe").source == "plugin"
    monkeypatch.setenv("RPC_BACKENDS_DENY", "TENSORPIPE")
    functions.refresh()
    assert functions.record("TENSORPIPE").source == "torch"


@pytest.mark.parametrize(
    ("name", "state"), [("CLAIMED", "conflict"), ("my-name", "invalid"), ("DENIED", "denied")]
)
def test_the_record_of_a_name_that_cannot_be_used_says_why(
    site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str, state: str
) -> None:
    site.add("dist-a", backends={"CLAIMED": "a:X", "my-name": "a:Y", "DENIED": "a:Z"})
    site.add("dist-b", backends={"CLAIMED": "b:X"})
    monkeypatch.setenv("RPC_BACKENDS_DENY", "DENIED")
    record = functions.record(name)
    assert (record.state, record.name) == (state, name)
    assert record.error is not None


def test_there_is_no_record_of_an_unknown_name(registry: Registry) -> None:
    with pytest.raises(UnknownBackendError, match="'NOTHING'"):
        functions.record("NOTHING")


def test_refresh_returns_all_records(site: Site, registry: Registry) -> None:
    assert functions.records() == []
    site.add("dist-a", backends={"CLAIMED": "a:X"})
    site.add("dist-b", backends={"CLAIMED": "b:X"})
    assert [record.state for record in functions.refresh()] == ["conflict", "conflict"]
    with pytest.raises(BackendConflictError):
        _ = B.CLAIMED


def test_record_is_the_function_whatever_has_been_imported(site: Site, registry: Registry) -> None:
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
    with pytest.raises(RuntimeError, match=r"Argument 7 must be of type <class 'str'>"):
        rpc.init_rpc(7, backend="TENSORPIPE", rank=0, world_size=1)
