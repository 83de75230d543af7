""":class:`Backend`, which a plugin provides, and the conversion of other objects to it."""

from __future__ import annotations

import collections
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rpc_backends_core._spi_version import check_spi_version

try:
    from torch.distributed.rpc import RpcBackendOptions
    from torch.distributed.rpc.backend_registry import BackendValue
except ImportError:  # a torch that was built without RPC
    RpcBackendOptions = object  # type: ignore[assignment,misc]
    BackendValue = collections.namedtuple(  # type: ignore[no-redef]
        "BackendValue", ["construct_rpc_backend_options_handler", "init_backend_handler"]
    )

ConstructOptionsHandler = Callable[..., Any]
InitBackendHandler = Callable[..., Any]
MakeTransport = Callable[..., Any]

#: The keywords that `init_rpc` passes to an init handler.
INIT_ARGUMENTS = ("store", "name", "rank", "world_size", "rpc_backend_options")


class Capability(StrEnum):
    """A feature that a backend can declare; `COMMITMENTS` states what each one promises."""

    STATIC_GROUPS = "static-groups"
    DYNAMIC_GROUPS = "dynamic-groups"
    REJOIN = "rejoin"
    DEVICES = "devices"
    DEVICE_MAPS = "device-maps"
    TORCHSCRIPT = "torchscript"
    FAULT_INJECTION = "fault-injection"
    ENCRYPTION = "encryption"
    PEER_LOSS_DETECTION = "peer-loss-detection"
    STRICT_OPTIONS = "strict-options"
    CLEAN_SHUTDOWN = "clean-shutdown"
    JOIN_RECOVERY = "join-recovery"
    SPARSE_LAYOUTS = "sparse-layouts"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A backend as a plugin declares it.

    :ivar construct_rpc_backend_options_handler: called as ``handler(rpc_timeout, init_method,
        **options)`` (seconds, URL); returns an instance of ``options_type``.
    :ivar init_backend_handler: called as ``handler(store=, name=, rank=, world_size=,
        rpc_backend_options=)``; returns the agent. ``world_size`` is None for a dynamic group. A
        handler with a parameter ``group`` also gets the :class:`~rpc_backends_core.spi.Group` that
        ``init_rpc`` has formed, or None where the caller brought the store.
    :ivar options_type: the class of the options. ``init_rpc`` uses it to find the backend when a
        program passes options but no backend name.
    :ivar capabilities: what the backend supports; :class:`Capability` lists the names this project
        knows. A backend may declare other names, unless they look like a misspelling of one of these.
    :ivar description: one line for `rpc-backends list`.
    :ivar spi_version: the version of :mod:`rpc_backends_core.spi` that the backend was written for,
        as (major, minor). A core without that version rejects the backend and says what to upgrade.
    :ivar make_transport: for a backend on the agent of `rpc-backends-agents`, so that its transport can
        be tested alone: called as ``make_transport(rpc_backend_options, group)``, returns a new
        transport for the worker ``group.name``. It must not listen yet. None if there is no transport, or
        if the suite is to take the one that the init handler starts.
    :ivar lacks_authentication: called with the options of a start; returns None if workers then prove to
        each other who they are, and otherwise why not, with what to do. None if the backend cannot
        authenticate; ``RPC_BACKENDS_REQUIRE_AUTH=1`` then refuses it.
    :ivar excluded_requirements: requirements of the conformance suite that the backend does not meet:
        their ids, each with the reason. The report shows them.
    :ivar takes_group: whether the init handler has a parameter ``group`` (computed).
    """

    construct_rpc_backend_options_handler: ConstructOptionsHandler
    init_backend_handler: InitBackendHandler
    options_type: type | None = None
    capabilities: frozenset[str] = frozenset()
    description: str = ""
    spi_version: tuple[int, int] | None = None
    make_transport: MakeTransport | None = None
    lacks_authentication: Callable[[Any], str | None] | None = None
    excluded_requirements: Mapping[str, str] = field(default_factory=dict, hash=False)
    takes_group: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Reject invalid declarations here, where their author sees the error."""
        for name in BackendValue._fields:
            if not callable(getattr(self, name)):
                raise TypeError(f"Backend.{name} is {getattr(self, name)!r}; it must be callable.")
        if self.make_transport is not None and not callable(self.make_transport):
            raise TypeError(
                f"Backend.make_transport is {self.make_transport!r}; it must be callable."
            )
        if self.lacks_authentication is not None and not callable(self.lacks_authentication):
            raise TypeError(
                f"Backend.lacks_authentication is {self.lacks_authentication!r}; it must be callable."
            )
        kind = self.options_type
        if kind is not None and not (
            isinstance(kind, type) and issubclass(kind, RpcBackendOptions)
        ):
            raise TypeError(
                f"Backend.options_type is {kind!r}; it must be a subclass of "
                "torch.distributed.rpc.RpcBackendOptions."
            )
        if not isinstance(self.description, str):
            raise TypeError(f"Backend.description is {self.description!r}; it must be a string.")
        object.__setattr__(self, "capabilities", _checked_capabilities(self.capabilities))
        object.__setattr__(self, "takes_group", _has_parameter(self.init_backend_handler, "group"))
        _check_exclusions(self.excluded_requirements)

    @property
    def value(self) -> BackendValue:
        """The handlers as torch keeps them."""
        return BackendValue(self.construct_rpc_backend_options_handler, self.init_backend_handler)


class NotABackendError(TypeError):
    """The object that an entry point names is no backend at all."""


def as_backend(obj: object, distribution: str | None = None) -> Backend:
    """Convert the object that an entry point names to a :class:`Backend`.

    Accepts a :class:`Backend`, a pair of handlers (a tuple or torch's ``BackendValue``), or any
    object that has the two handlers as attributes.

    :param distribution: the package that declares it, for error messages.
    :raises TypeError: the object is none of these, or torch could not call a handler with its
        signature.
    :raises SpiVersionError: the backend was written for another version of
        :mod:`rpc_backends_core.spi`.
    """
    check_spi_version(getattr(obj, "spi_version", None), distribution)
    backend = _convert(obj)
    _check_signature(
        backend.construct_rpc_backend_options_handler,
        "construct_rpc_backend_options_handler",
        "(rpc_timeout, init_method, **options)",
        args=(60.0, "env://"),
    )
    _check_signature(
        backend.init_backend_handler,
        "init_backend_handler",
        "(store, name, rank, world_size, rpc_backend_options)",
        kwargs=dict.fromkeys(INIT_ARGUMENTS),
    )
    return backend


def _checked_capabilities(declared: object) -> frozenset[str]:
    """Return the capabilities as plain strings.

    :raises TypeError: they are not strings.
    :raises ValueError: a name is almost that of a :class:`Capability`. Other names are the backend's
        own.
    """
    if isinstance(declared, str) or not isinstance(declared, Iterable):
        raise TypeError(f"Backend.capabilities is {declared!r}; it must be a set of strings.")
    names = frozenset(declared)
    known = [capability.value for capability in Capability]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"Backend.capabilities has {name!r}; it must be a set of strings.")
        if name in known:
            continue
        spelt = name.casefold().replace("_", "-")
        close = difflib.get_close_matches(spelt, known, n=1, cutoff=0.8)
        if close:
            raise ValueError(
                f"Backend.capabilities has {str(name)!r}, which is not a capability; did you mean "
                f"{close[0]!r}?"
            )
    return frozenset(map(str, names))


def _check_exclusions(excluded: object) -> None:
    """Reject exclusions that are not a requirement's id with a reason each."""
    if not isinstance(excluded, Mapping):
        raise TypeError(
            f"Backend.excluded_requirements is {excluded!r}; it must be a dict of requirement to reason."
        )
    for requirement, reason in excluded.items():
        if not isinstance(requirement, str) or not isinstance(reason, str):
            raise TypeError(
                f"Backend.excluded_requirements has {requirement!r}: {reason!r}; both must be strings."
            )
        if not reason.strip():
            raise ValueError(
                f"Backend.excluded_requirements[{requirement!r}] is empty; it must say why the backend "
                "does not meet the requirement."
            )


def _has_parameter(handler: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(handler).parameters
    except (TypeError, ValueError):
        return False  # written in C without a signature


def _convert(obj: object) -> Backend:
    if isinstance(obj, Backend):
        return obj
    if isinstance(obj, tuple) and len(obj) == len(BackendValue._fields) and all(map(callable, obj)):
        return Backend(construct_rpc_backend_options_handler=obj[0], init_backend_handler=obj[1])
    handlers = {field: getattr(obj, field, None) for field in BackendValue._fields}
    if all(map(callable, handlers.values())):
        return Backend(
            **handlers,  # type: ignore[arg-type]  # each was just seen to be callable
            options_type=getattr(obj, "options_type", None),
            capabilities=getattr(obj, "capabilities", frozenset()),
            description=getattr(obj, "description", ""),
            make_transport=getattr(obj, "make_transport", None),
            lacks_authentication=getattr(obj, "lacks_authentication", None),
            excluded_requirements=getattr(obj, "excluded_requirements", {}),
        )
    raise NotABackendError(
        f"the entry point names {obj!r}, which is not a backend. It must be a "
        "rpc_backends_core.Backend, or a pair (construct options handler, init backend handler)."
    )


def _check_signature(
    handler: Callable[..., Any],
    which: str,
    wanted: str,
    args: tuple[object, ...] = (),
    kwargs: dict[str, object] | None = None,
) -> None:
    """Check that ``handler`` can be called as torch calls it.

    A construct handler may have more required options: ``bind_partial`` ignores them.
    """
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # written in C without a signature: only a call would tell
    try:
        (signature.bind if kwargs else signature.bind_partial)(*args, **(kwargs or {}))
    except TypeError as mismatch:
        raise TypeError(
            f"{which} has the signature {signature}, and torch calls it as {wanted}: {mismatch}."
        ) from None
