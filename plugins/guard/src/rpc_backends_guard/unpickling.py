"""Unpickles what a peer has sent, and calls nothing but what is permitted in doing so.

A name that a pickle may not call becomes a :class:`Reference`, which does nothing. So a function that is
listed to be called cannot run while a call of it is unpickled.
"""

from __future__ import annotations

import importlib
import io
import pickle
import re
from collections.abc import Callable
from typing import Any, NoReturn

from rpc_backends_core.spi import RpcBackendsError, torch_internals
from rpc_backends_guard import names

#: The name of a class of TorchScript.
_SCRIPT_CLASS = re.compile(r"__torch__(\.[A-Za-z_]\w*)+")


class GuardError(RpcBackendsError, RuntimeError):
    """The policy does not permit a message.

    :ivar kind: the list of a policy that lacks an entry.
    :ivar name: the entry that it lacks.
    """

    def __init__(self, text: str, kind: str = "message", name: str = "") -> None:
        super().__init__(text)
        self.kind = kind
        self.name = name


def _immutable(self: Any, name: str, value: Any = None) -> NoReturn:
    raise TypeError("a pickle must not change what it names")


class Reference:
    """Stands for a function or a class that a pickle names. It cannot be called or changed."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "name", name)

    __setattr__ = _immutable
    __delattr__ = _immutable


class PermittedFunction:
    """A function that a pickle may call; it has no state that a pickle could set."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    __setattr__ = _immutable
    __delattr__ = _immutable

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        return self._function(*arguments, **keywords)  # type: ignore[attr-defined]


class _PermittedMeta(type):
    """The class of stand-ins for permitted classes; a pickle may make objects with them, not set them."""

    _real: type
    _name: str

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return cls._real(*arguments, **keywords)

    __setattr__ = _immutable
    __delattr__ = _immutable


def _new(cls: _PermittedMeta, *arguments: Any, **keywords: Any) -> Any:
    return cls._real.__new__(cls._real, *arguments, **keywords)


def permitted(name: str, real: Any) -> Any:
    """Return what stands in a pickle for a class or a function that it may call."""
    if not isinstance(real, type):
        return PermittedFunction(real)
    return _PermittedMeta("Permitted", (), {"_real": real, "_name": name, "__new__": _new})


def resolve(name: str) -> Any:
    """Return what MODULE:QUALNAME names.

    :raises ImportError: there is no such module.
    :raises AttributeError: the module lacks it.
    """
    module, _, qualname = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in qualname.split("."):
        value = getattr(value, part)
    return value


class Names:
    """What the pickles of one worker may name and call.

    :param types: the names of a policy.
    :param with_call: whether a pickle may be a call.
    """

    def __init__(self, types: tuple[str, ...], *, with_call: bool) -> None:
        listed = {
            name: resolve(name) for name in types if not name.startswith(f"{names.INTERNAL}:")
        }
        receivers = torch_internals.receivers()
        self._attributes: dict[tuple[str, str], Any] = {
            (f"{names.INTERNAL}:_InternalRPCPickler", name): PermittedFunction(receive)
            for name, receive in (
                ("_tensor_receiver", receivers["_tensor_receiver"]),
                ("_py_rref_receiver", _checked_rref(receivers["_py_rref_receiver"])),
            )
        }
        scripts = f"{names.INTERNAL}:_InternalRPCPickler._script_module_receiver"
        if scripts in types:
            self._attributes[f"{names.INTERNAL}:_InternalRPCPickler", "_script_module_receiver"] = (
                PermittedFunction(receivers["_script_module_receiver"])
            )
        self.by_name: dict[str, Any] = {
            **names.constants(),
            **{name: permitted(name, real) for name, real in names.plain_types().items()},
            **{name: permitted(name, real) for name, real in listed.items()},
        }
        for kind, real in torch_internals.pickled_classes().items():
            if with_call or kind != "PythonUDF":
                name = f"{names.INTERNAL}:{kind}"
                self.by_name[name] = permitted(name, real)

    def attribute(self, of: Any, name: Any) -> Any:
        """Return what stands for an attribute of a class in a pickle.

        :raises GuardError: the pickle asks for the attribute of anything else.
        """
        owner = of.name if type(of) is Reference else None
        if type(of) is _PermittedMeta:
            owner = of._name
        if owner is None or type(name) is not str:
            raise GuardError(
                "it takes an attribute of an object that it holds, such as a bound method. Pass the "
                "object, and call a function that calls the method",
                "types",
                "builtins:getattr",
            )
        known = self._attributes.get((owner, name))
        return Reference(f"{owner}.{name}") if known is None else known


def _checked_rref(receive: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that makes an RRef if its type is plain, or a class of TorchScript.

    Torch looks the name of such a class up, and runs nothing of it.
    """

    def receive_rref(data: Any) -> Any:
        text = data[-1] if type(data) is tuple and len(data) == 7 else None
        if type(text) is not str or len(text) > 1000:
            raise GuardError("it holds an RRef in another form than torch's")
        for word in text.translate(str.maketrans("[](),", "     ")).split():
            if word not in names.RREF_TYPES and not _SCRIPT_CLASS.fullmatch(word):
                raise GuardError(f"it holds an RRef of type {word!r}")
        return receive(data)

    return receive_rref


class _Unpickler(pickle.Unpickler):
    """Finds only permitted names."""

    def __init__(self, data: bytes, known: Names) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known
        self._by_name = known.by_name
        self.references: dict[str, Reference] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name; nothing is imported."""
        key = f"{module}:{name}"
        value = self._by_name.get(key)
        if value is not None:
            return value
        if key == "builtins:getattr":
            return PermittedFunction(self._attribute)
        return self.references.setdefault(key, Reference(key))

    def _attribute(self, of: Any, name: Any) -> Any:
        value = self._known.attribute(of, name)
        if type(of) is Reference:
            self.references.pop(of.name, None)
        if type(value) is Reference:
            return self.references.setdefault(value.name, value)
        return value


class Unpickled:
    """A value in which references stand for functions and classes.

    :ivar value: the value.
    """

    def __init__(self, value: Any, references: dict[str, Reference]) -> None:
        self.value = value
        self._left = references

    def place_all(self, values: tuple[Any, ...], find: Callable[[str], Any]) -> tuple[Any, ...]:
        """Return the values of arguments, as :meth:`place` does."""
        for value in values:
            if type(value) in STAND_INS:
                return tuple(self.place(value, find) for value in values)
        return values

    def place(self, value: Any, find: Callable[[str], Any]) -> Any:
        """Return the value of an argument: for a reference and a class, what ``find`` returns."""
        if type(value) is Reference:
            self._left.pop(value.name, None)
            return find(value.name)
        if type(value) is PermittedFunction:
            raise GuardError("it passes a function that only a pickle may call")
        return value._real if type(value) is _PermittedMeta else value

    def check_all_placed(self) -> None:
        """Refuse what a pickle has named in other places.

        :raises GuardError: a function or class is inside a container.
        """
        if self._left:
            name = names.canonical(min(self._left))
            raise GuardError(
                f"it holds {name!r} inside another value; only an argument itself may be a function or "
                "a class of `references`",
                "references",
                name,
            )


#: What stands in an unpickled value for functions and classes.
STAND_INS = frozenset({Reference, PermittedFunction, _PermittedMeta})


def name_of(value: Any) -> str | None:
    """Return the name of what a pickle calls or passes; None for any other value."""
    if type(value) is Reference:
        return names.canonical(value.name)
    return value._name if type(value) is _PermittedMeta else None


def unpickle_plain(data: bytes) -> Any:
    """Unpickle a message that consists of plain values and tensors.

    :raises GuardError: Python cannot read it.
    """
    try:
        return pickle.loads(data)
    except Exception as error:
        raise _unreadable(error) from None


def unpickle(data: bytes, known: Names, problem: str) -> Unpickled:
    """Unpickle a message.

    :param problem: what ``check_pickle`` has found wrong with it; empty for nothing.
    :raises GuardError: there is a problem, or it calls what it may not.
    """
    if problem:
        raise GuardError(problem)
    unpickler = _Unpickler(data, known)
    try:
        value = unpickler.load()
    except GuardError:
        raise
    except Exception as error:
        unlisted = list(unpickler.references)
        if isinstance(error, TypeError | pickle.UnpicklingError) and unlisted:
            name = names.canonical(unlisted[-1])
            raise GuardError(
                f"`types` does not list {name!r}, of which it makes a value", "types", name
            ) from None
        raise _unreadable(error) from None
    return Unpickled(value, unpickler.references)


def _unreadable(error: Exception) -> GuardError:
    return GuardError(f"it cannot be unpickled: {type(error).__name__}: {error}")
