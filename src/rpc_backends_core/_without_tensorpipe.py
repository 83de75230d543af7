"""Starting another backend in place of TENSORPIPE, on a torch that was built without TensorPipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rpc_backends_core._backend import Backend, Capability
from rpc_backends_core._errors import BackendLoadError, RpcBackendsError
from rpc_backends_core._tensorpipe_options import TensorPipeRpcBackendOptions

if TYPE_CHECKING:
    from rpc_backends_core._record import Record
    from rpc_backends_core._registry import Registry

#: The backends that come first.
_ORDER = ("ZEROMQ", "UCX")
#: What a start may need of a backend, in the words of `init_rpc`.
_WORDS = {
    Capability.STATIC_GROUPS: "groups with a world_size",
    Capability.DYNAMIC_GROUPS: "groups without a world_size",
    Capability.DEVICE_MAPS: "device_maps and devices",
}
#: What stands in front of the warning about options that the other backend does not have.
REASON = "This torch was built without TensorPipe"


def needs(options: Any, *, is_dynamic: bool) -> frozenset[Capability]:
    """Return what a backend must be capable of to serve a start in place of TENSORPIPE.

    :param options: the program's options; None if it passes none.
    :param is_dynamic: whether the start joins a dynamic group.
    """
    wanted = {Capability.DYNAMIC_GROUPS if is_dynamic else Capability.STATIC_GROUPS}
    if getattr(options, "device_maps", None) or getattr(options, "devices", None):
        wanted.add(Capability.DEVICE_MAPS)
    return frozenset(wanted)


def replacement(registry: Registry, wanted: frozenset[Capability]) -> Record:
    """Return the loaded record of the backend that takes TENSORPIPE's place.

    ZEROMQ comes first, then UCX, then the other installed backends by name. The order does not depend on
    the program, so that all workers of a group choose the same one.

    :param wanted: see :func:`needs`.
    :raises BackendLoadError: no installed backend has them; the text says what to install.
    """
    refused: dict[str, str] = {}
    for name in _candidates(registry):
        try:
            record = registry.load(name)
        except RpcBackendsError as error:
            refused[name] = str(error)
            continue
        assert record.backend is not None, "it has just been loaded"
        missing = wanted - record.backend.capabilities
        if not missing:
            return record
        refused[name] = f"it does not serve {_listed(missing)}"
    raise BackendLoadError(
        "This torch was built without TensorPipe, so TENSORPIPE cannot be started, and no installed "
        f"backend can take its place and serve {_listed(wanted)}. Install one: pip install "
        "rpc-backend-zeromq, or pip install rpc-backend-ucx; if its wheel is in a folder, with "
        "--find-links FOLDER."
        + "".join(f"\n{name} is not used: {why}" for name, why in refused.items())
    )


def check_replacement() -> None:
    """Look for what a plain ``init_rpc`` starts on this torch.

    :raises BackendLoadError: no installed backend can take TENSORPIPE's place; the text says what to
        install.
    """
    from rpc_backends_core._default_registry import default_registry

    replacement(default_registry(), needs(None, is_dynamic=False))


def stand_in() -> Backend:
    """Return what has the name TENSORPIPE: it constructs options, and starts nothing."""
    return Backend(
        construct_rpc_backend_options_handler=_construct,
        init_backend_handler=_init,
        options_type=TensorPipeRpcBackendOptions,
    )


def _candidates(registry: Registry) -> list[str]:
    installed = {
        record.name
        for record in registry.records()
        if record.source == "plugin" and record.state not in ("unavailable", "invalid")
    }
    return sorted(
        installed, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)
    )


def _listed(needed: Iterable[Capability]) -> str:
    return " and ".join(words for capability, words in _WORDS.items() if capability in needed)


def _construct(rpc_timeout: float, init_method: str, **options: Any) -> TensorPipeRpcBackendOptions:
    return TensorPipeRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **options)


def _init(*args: Any, **kwargs: Any) -> Any:
    raise BackendLoadError(
        "init_backend was asked for TENSORPIPE, and this torch was built without TensorPipe. Call "
        "init_rpc, which starts another installed backend in its place, or name that backend."
    )
