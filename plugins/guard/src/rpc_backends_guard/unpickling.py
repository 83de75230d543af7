"""Unpickles what a peer has sent, and calls nothing but what is permitted in doing so.

A name that a pickle may not call becomes a :class:`Reference`, which does nothing. So a function that is
listed to be called cannot run while a call of it is unpickled.
"""

from __future__ import annotations

import gc
import importlib
import io
import logging
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch

from rpc_backends_core.spi import RpcBackendsError, torch_internals
from rpc_backends_guard import names

logger = logging.getLogger("rpc_backends.guard")

#: The name of a class of TorchScript.
_SCRIPT_CLASS = re.compile(r"__torch__(\.[A-Za-z_]\w*)+")


class GuardError(RpcBackendsError, RuntimeError):
    """The policy does not permit a message.

    :ivar kind: the list of a policy that lacks an entry.
    :ivar name: the entry that it lacks.
    :param of_result: whether the message is a result.
    """

    def __init__(
        self, text: str, kind: str = "message", name: str = "", *, of_result: bool = False
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.name = name
        self.of_result = of_result


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

    def __call__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        """Refuse to be called while a message is unpickled."""
        raise _unlisted([self.name])


class PermittedFunction:
    """A function that a pickle may call; it has no state that a pickle could set.

    :param made: gets the classes of what the function returns.
    :param name: of the function, by which a policy lists it; empty for one of torch's.
    """

    __slots__ = ("_function", "_made", "_name")
    _function: Callable[..., Any]
    _made: set[type]
    _name: str

    def __init__(self, function: Callable[..., Any], made: set[type], name: str = "") -> None:
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_name", name)

    __setattr__ = _immutable
    __delattr__ = _immutable

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        _check_arguments(arguments, keywords, self._made)
        value = self._function(*arguments, **keywords)
        self._made.add(type(value))
        return value


class _Getattr(PermittedFunction):
    """Stands for getattr, whose first argument is a stand-in."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        return self._function(*arguments, **keywords)


class _PermittedMeta(type):
    """The class of stand-ins for permitted classes; a pickle may make objects with them, not set them."""

    _real: type
    _name: str
    _made: set[type]

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        _check_arguments(arguments, keywords, cls._made)
        value = cls._real(*arguments, **keywords)
        cls._made.add(type(value))
        return value

    __setattr__ = _immutable
    __delattr__ = _immutable


def _new(cls: _PermittedMeta, *arguments: Any, **keywords: Any) -> Any:
    if cls._name not in names.NEVER_PASSED:  # what these hold is placed later
        _check_arguments(arguments, keywords, cls._made)
    value = cls._real.__new__(cls._real, *arguments, **keywords)
    cls._made.add(type(value))
    return value


def permitted(name: str, real: Any, made: set[type]) -> Any:
    """Return what stands in a pickle for a class or a function that it may call.

    :param made: gets the classes of the values that are made.
    """
    if not isinstance(real, type):
        return PermittedFunction(real, made, name)
    # Without a __dict__, so that a pickle cannot make it the __class__ of an object.
    members = {"_real": real, "_name": name, "_made": made, "__new__": _new, "__slots__": ()}
    return _PermittedMeta("Permitted", (), members)


#: Values that hold no others.
_ATOMS = frozenset(
    {bool, int, float, complex, str, bytes, bytearray, type(None), torch.Tensor, torch.dtype}
)
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, OrderedDict})


def _stand_in(values: Iterable[Any], made: set[type]) -> Any:
    """Return a stand-in that values hold, at any depth; None if they hold none.

    It looks into containers and into objects of the classes ``made``.
    """
    stack = [values]
    seen = set()
    while stack:
        values = stack.pop()
        if _ATOMS.issuperset(map(type, values)):
            continue
        for value in values:
            kind = type(value)
            if kind in STAND_INS:
                return value
            if type(kind) is _PermittedMeta:  # its __class__ was set
                return kind
            if (kind in _CONTAINERS or kind in made) and id(value) not in seen:
                seen.add(id(value))
                stack.append(gc.get_referents(value))
    return None


def _check_arguments(arguments: tuple[Any, ...], keywords: dict[str, Any], made: set[type]) -> None:
    stand_in = _stand_in((*arguments, *keywords.values()), made)
    if stand_in is not None:
        name = _written(stand_in)
        raise GuardError(
            f"it passes {name!r} to a class or a function while it is unpickled", "types", name
        )


def _written(stand_in: Any) -> str:
    return name_of(stand_in) or "a function that only a pickle may call"


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
    :param receivers: what makes tensors and RRefs in place of torch's functions, by their names.
    """

    def __init__(
        self,
        types: tuple[str, ...],
        *,
        with_call: bool,
        receivers: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        #: The classes of the objects that pickles have made.
        self.made: set[type] = set()
        listed = {
            name: resolve(name) for name in types if not name.startswith(f"{names.INTERNAL}:")
        }
        receivers = receivers or torch_internals.receivers()
        #: Makes an RRef of what was sent for it.
        self.receive_rref = PermittedFunction(
            _checked_rref(receivers["_py_rref_receiver"]), self.made
        )
        receive_tensor = PermittedFunction(receivers["_tensor_receiver"], self.made)
        self._attributes: dict[tuple[str, str], Any] = {
            (f"{names.INTERNAL}:_InternalRPCPickler", "_tensor_receiver"): receive_tensor,
            (f"{names.INTERNAL}:_InternalRPCPickler", "_py_rref_receiver"): self.receive_rref,
        }
        scripts = f"{names.INTERNAL}:_InternalRPCPickler._script_module_receiver"
        if scripts in types:
            self._attributes[f"{names.INTERNAL}:_InternalRPCPickler", "_script_module_receiver"] = (
                PermittedFunction(receivers["_script_module_receiver"], self.made)
            )
        self.by_name: dict[str, Any] = {
            **names.constants(),
            **{
                name: permitted(name, real, self.made) for name, real in names.plain_types().items()
            },
            **{name: permitted(name, real, self.made) for name, real in listed.items()},
        }
        for kind, real in torch_internals.pickled_classes().items():
            if with_call or kind != "PythonUDF":
                name = f"{names.INTERNAL}:{kind}"
                self.by_name[name] = permitted(name, real, self.made)

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

    def __init__(self, data: bytes, known: Names, rrefs: dict[Any, Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._known = known
        self._by_name = known.by_name
        self._rrefs = rrefs
        self.references: dict[str, Reference] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name; nothing is imported."""
        key = f"{module}:{name}"
        value = self._by_name.get(key)
        if value is not None:
            return value
        if key == "builtins:getattr":
            return _Getattr(self._attribute, set())
        return self.references.setdefault(key, Reference(key))

    def _attribute(self, of: Any, name: Any) -> Any:
        value = self._known.attribute(of, name)
        if type(of) is Reference:
            self.references.pop(of.name, None)
        if type(value) is Reference:
            return self.references.setdefault(value.name, value)
        if value is self._known.receive_rref:
            return PermittedFunction(self._receive_rref, self._known.made)
        return value

    def _receive_rref(self, data: Any) -> Any:
        rref = self._rrefs[data] = self._known.receive_rref(data)
        return rref


class AgainUnpickler(pickle.Unpickler):
    """Unpickles as pickle does what was unpickled before.

    Torch counts the users of an RRef each time that it receives one.

    :param rrefs: the RRefs that were received, by what was sent for them.
    """

    def __init__(self, data: bytes, rrefs: dict[Any, Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._rrefs = rrefs
        self._receive = torch_internals.receivers()["_py_rref_receiver"]

    def find_class(self, module: str, name: str) -> Any:
        """Return what has this name."""
        value = super().find_class(module, name)
        return self._attribute if value is getattr else value

    def _attribute(self, of: Any, name: str) -> Any:
        value = getattr(of, name)
        return self._received if value == self._receive else value

    def _received(self, data: Any) -> Any:
        return self._rrefs[data] if data in self._rrefs else self._receive(data)


class Unpickled:
    """A value in which references stand for functions and classes.

    :ivar value: the value.
    """

    def __init__(self, value: Any, references: dict[str, Reference], made: set[type]) -> None:
        self.value = value
        self._left = references
        self._made = made

    def place_all(self, values: tuple[Any, ...], find: Callable[[str], Any]) -> tuple[Any, ...]:
        """Return the values of arguments, as :meth:`place` does."""
        if _stand_in(values, self._made) is None:
            return values
        return tuple(self.place(value, find) for value in values)

    def place(self, value: Any, find: Callable[[str], Any]) -> Any:
        """Return a value in which functions and classes are what ``find`` returns for their names.

        They are put into containers and into attributes of objects.

        :raises GuardError: ``find`` does, or one is elsewhere.
        """
        if type(value) not in STAND_INS and _stand_in((value,), self._made) is None:
            return value
        placed = self._placed(value, find, {})
        stand_in = _stand_in((placed,), self._made)
        if stand_in is not None:
            name = _written(stand_in)
            raise GuardError(
                f"it holds {name!r} where a function or a class cannot be put", "references", name
            )
        return placed

    def place_function(self, value: Any) -> None:
        """Note that the function of a call is decided by its name."""
        if type(value) is Reference:
            self._left.pop(value.name, None)

    def _placed(self, value: Any, find: Callable[[str], Any], done: dict[int, Any]) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is Reference:
            self._left.pop(value.name, None)
            return find(value.name)
        if kind is _PermittedMeta or (kind is PermittedFunction and value._name):
            return find(value._name)
        if kind in STAND_INS:
            raise GuardError("it passes a function that only a pickle may call")
        if id(value) in done:
            return done[id(value)]
        done[id(value)] = value
        if kind in {tuple, frozenset}:
            done[id(value)] = kind(self._placed(item, find, done) for item in value)
        elif kind is list:
            value[:] = [self._placed(item, find, done) for item in value]
        elif kind is set:
            items = [self._placed(item, find, done) for item in value]
            value.clear()
            value.update(items)
        elif kind in {dict, OrderedDict}:
            pairs = [
                (self._placed(key, find, done), self._placed(item, find, done))
                for key, item in value.items()
            ]
            value.clear()
            value.update(pairs)
        elif kind in self._made and isinstance(getattr(value, "__dict__", None), dict):
            self._placed(vars(value), find, done)
        return done[id(value)]

    def check_all_placed(self) -> None:
        """Refuse what a pickle has named in other places.

        :raises GuardError: a function or class is none of the values that were placed.
        """
        if self._left:
            name = names.canonical(min(self._left))
            raise GuardError(
                f"it names {name!r}, which is no argument and in no argument", "references", name
            )


#: What stands in an unpickled value for functions and classes.
STAND_INS = frozenset({Reference, PermittedFunction, _Getattr, _PermittedMeta})


def name_of(value: Any) -> str | None:
    """Return the name of what a pickle calls or passes; None for any other value."""
    if type(value) is Reference:
        return names.canonical(value.name)
    if type(value) is _PermittedMeta or type(value) is PermittedFunction:
        return names.canonical(value._name) or None
    return None


def unpickle(data: bytes, known: Names, problem: str, rrefs: dict[Any, Any]) -> Unpickled:
    """Unpickle a message.

    :param problem: what ``PickleLimits.problem`` has found wrong with it; empty for nothing.
    :param rrefs: gets the RRefs that the message brings, by what was sent for them.
    :raises GuardError: there is a problem, or it calls what it may not.
    """
    if problem:
        raise GuardError(problem)
    unpickler = _Unpickler(data, known, rrefs)
    try:
        value = unpickler.load()
    except GuardError:
        raise
    except Exception as error:
        # The opcode of Python for new objects takes only classes, and does not say what it has got.
        if isinstance(error, pickle.UnpicklingError) and str(error).startswith("NEWOBJ"):
            raise _unlisted(list(unpickler.references)) from None
        raise _unreadable(error) from None
    return Unpickled(value, unpickler.references, known.made)


def _unlisted(unlisted: list[str]) -> GuardError:
    """Return the error for a value of a class, or of one of some, that `types` does not list."""
    written = [names.canonical(name) for name in unlisted]
    if len(written) == 1:
        text = f"`types` does not list {written[0]!r}, of which it makes a value"
        return GuardError(text, "types", written[0])
    text = f"it makes a value of one of {', '.join(map(repr, written[:5]))}, and `types` does not list it"
    return GuardError(text, "types", written[-1] if written else "")


def _unreadable(error: Exception) -> GuardError:
    return GuardError(f"it cannot be unpickled: {type(error).__name__}: {error}")


def never_permitted(data: bytes, named: Iterable[str]) -> str:
    """Return why the guard refuses a message, whatever its policy lists; empty if it can be permitted.

    It makes the objects of the message again, but no tensors, and no RRefs, which count their users.

    :param named: the functions and classes that the message names.
    """
    empty = torch.empty(0)
    receivers = {name: lambda _data: empty for name in torch_internals.receivers()}
    try:
        known = Names(tuple(named), with_call=True, receivers=receivers)
        unpickled = unpickle(data, known, "", {})
        parts = torch_internals.call_parts(unpickled.value)
        values = (unpickled.value,) if parts is None else (*parts[1], *parts[2].values())
        unpickled.place_all(values, lambda _name: empty)
    except GuardError as error:
        return str(error) if error.name else ""  # without a name, an object could not be made
    except Exception:  # a message in another form, or a class that cannot do with an empty tensor
        logger.debug("a message cannot be made a second time", exc_info=True)
    return ""
