"""``BackendType``: a single enum object that grows in place as backends appear.

Its members are the registry's names. A backend is loaded only when its member's ``value`` is read. No
other module relies on how `enum` stores its members.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch.distributed.rpc.backend_registry import BackendValue

    from rpc_backends_core._registry import Registry


class ExtensibleEnumType(enum.EnumMeta):
    """The metaclass of :class:`BackendType`: looks members up in the registry, not in `enum`'s tables.

    A member object is kept for the life of the process. A name that disappears and comes back is the
    same object, so ``is`` comparisons with a stored member stay valid.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        # Attributes are case-sensitive, unlike strings: they are written in source code.
        record = _registry().find(name)
        if record.name != name:
            from rpc_backends_core._errors import UnknownBackendError

            raise UnknownBackendError(
                f"BackendType has no attribute {name!r}. Did you mean BackendType.{record.name}? "
                "(Only strings are looked up without regard to case.)"
            )
        return member_of(name)

    def __getitem__(cls, name: str) -> Any:
        return member_of(_registry().find(name).name)

    def __call__(cls, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the member for a member, a name or a pair of handlers.

        If several backends share the same pair of handlers, the first one is returned.
        """
        if args or kwargs:
            raise TypeError("BackendType cannot be subclassed; register a backend to extend it.")
        known = coerce_member(value)
        if known is not None:
            return known
        if isinstance(value, str):
            try:
                return cls[value]
            except KeyError as unknown:
                # what calling an enum raises
                raise ValueError(str(unknown)) from unknown
        for member in cls:
            # Only backends that are already loaded are compared; this lookup loads none.
            if _loaded_value(member) == value:
                return member
        raise ValueError(f"{value!r} is not a valid BackendType")

    def __iter__(cls) -> Iterator[Any]:
        return (member_of(name) for name in _registry().names())

    def __reversed__(cls) -> Iterator[Any]:
        return (member_of(name) for name in reversed(_registry().names()))

    def __len__(cls) -> int:
        return len(_registry().names())

    def __bool__(cls) -> Literal[True]:
        return True

    def __contains__(cls, value: object) -> bool:
        if isinstance(value, str):
            return _registry().knows(value)
        known = coerce_member(value)
        return known is not None and known.name in _registry().names()

    @property
    def __members__(cls) -> Any:
        from types import MappingProxyType

        return MappingProxyType({name: member_of(name) for name in _registry().names()})

    def __dir__(cls) -> list[str]:
        return sorted({*super().__dir__(), *_registry().names()})


class BackendType(enum.Enum, metaclass=ExtensibleEnumType):
    """The available RPC backends: built into torch, installed, or registered in this process."""

    def __init_subclass__(cls) -> None:
        raise TypeError("BackendType cannot be subclassed; register a backend to extend it.")

    @property
    def value(self) -> BackendValue:
        """The backend's two handlers as torch's ``BackendValue``; loads the backend if necessary.

        :raises BackendLoadError: the installed backend cannot be used; the cause is chained.
        """
        return _registry().backend(self.name).value

    def __repr__(self) -> str:
        return f"BackendType.{self.name}"

    def __hash__(self) -> int:
        return hash((BackendType, self.name))

    def __eq__(self, other: object) -> bool:
        return self is other

    def __copy__(self) -> BackendType:
        return self

    def __deepcopy__(self, memo: object) -> BackendType:
        return self

    def __reduce_ex__(self, protocol: object) -> Any:
        # By name: the receiving process may not have loaded the plugin, or have another version of it.
        return (_unpickle, (self.name,))


def coerce_member(value: object) -> Any:
    """Return the member for ``value`` (our member, or one of an enum torch built), or None.

    Torch builds a new enum at each registration, and programs may hold members of older ones.
    """
    if isinstance(value, BackendType):
        return value
    if isinstance(value, enum.Enum) and type(value).__name__ == "BackendType":
        registry = _registry()
        return member_of(value.name) if value.name in registry.names() else None
    return None


def _registry() -> Registry:
    from rpc_backends_core._default_registry import default_registry

    return default_registry()


def _unpickle(name: str) -> Any:
    return member_of(_registry().find(name).name)


def member_of(name: str) -> Any:
    """Return the only member of that name; create it on the first call."""
    table: dict[str, Any] = BackendType._member_map_
    member = table.get(name)
    if member is None:
        new = object.__new__(BackendType)
        new._name_ = name
        new._value_ = name
        new.__objclass__ = BackendType  # type: ignore[attr-defined]  # as enum itself sets it
        # setdefault is atomic: two threads get the same object.
        member = table.setdefault(name, new)
    return member


def _loaded_value(member: Any) -> object:
    """Return the handlers of a loaded, usable backend; None for any other."""
    try:
        record = _registry().find(member.name)
    except (RuntimeError, KeyError):
        return None
    return None if record.backend is None else record.backend.value
