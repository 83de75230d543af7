"""Checks the options that a class declares when the class is made, so that mistakes show at import."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, get_origin

from rpc_backends_agents.engine.kinds import Kind
from rpc_backends_agents.engine.option_checks import OptionChecks

if TYPE_CHECKING:
    from rpc_backends_agents.engine.declarations import DeclaredOptions, Option

#: Of torch's options, these two can be changed later. They are attributes of torch's class.
TORCHS = ("rpc_timeout", "init_method")

#: The class of an annotation in the source, such as `engine.Option[int]`.
_CLASS = re.compile(r"(?:\w+\.)*(\w+)\[")
#: A backend's name is also part of the names of its variables.
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
#: Those that an annotation may confuse.
_DECLARATIONS = ("Option", "VariableOption")

#: A name of the class, and what is wrong with it.
_Mistakes = Iterator[tuple[str, str]]


def check_declarations(
    cls: type[DeclaredOptions], own: Iterable[str], annotations: Mapping[str, Any], *, base: bool
) -> None:
    """Check what a class declares, and report the first mistake.

    :param own: the names of the options that the class declares itself.
    :param annotations: the annotations of the class.
    :param base: whether the class is only a base of other classes.
    :raises TypeError: a declaration is wrong.
    """
    mistakes = chain(
        _in_other_names(cls, own, annotations),
        *(_in_name(cls, cls.DECLARED[name], annotations) for name in own),
        *(_in_option(cls.DECLARED[name]) for name in own),
        _between_options(list(cls.DECLARED.values())),
        () if base else _in_backend(cls),
    )
    for name, mistake in mistakes:
        raise TypeError(f"{cls.__qualname__}.{name}: {mistake.rstrip('.')}.")


def _in_backend(cls: type[DeclaredOptions]) -> _Mistakes:
    if not isinstance(cls.BACKEND, str) or not cls.BACKEND:
        text = "is not the name of a backend; set the name, or pass base=True for a base of others"
        yield "BACKEND", f"{cls.BACKEND!r} {text}"
    elif not _NAME.fullmatch(cls.BACKEND):
        text = "is not the name of a backend; write it with capital letters, digits and underscores"
        yield "BACKEND", f"{cls.BACKEND!r} {text}"
    for name in TORCHS:
        if name not in cls.DECLARED:
            yield name, "the option is missing; derive the class from EngineOptions, which has it"


def _in_name(
    cls: type[DeclaredOptions], option: Option[Any, Any], annotations: Mapping[str, Any]
) -> _Mistakes:
    name, declared = option.name, type(option).__name__
    wanted = f"write {name}: {declared}[TYPE] = {declared}(...)"
    if name not in annotations:
        yield name, f"the annotation is missing; {wanted}"
    elif {(annotated := _class_of(annotations[name])), declared} == {*_DECLARATIONS}:
        yield name, f"the annotation says {annotated}, and the value is of {declared}; {wanted}"
    if name.startswith("_") or name in ("self", "cls"):
        yield name, "a program cannot pass an option of this name; choose another one"
    base = cls.__base__ or object
    there = option if name in TORCHS else getattr(base, name, option)
    if type(there) is not type(option):
        yield name, f"{base.__name__} uses this name for something else; choose another one"
    elif there.kind is not option.kind:
        yield name, f"{base.__name__} has this option with another kind; choose another name"


def _in_other_names(
    cls: type[DeclaredOptions], own: Iterable[str], annotations: Mapping[str, Any]
) -> _Mistakes:
    for name, annotation in annotations.items():
        declared = _class_of(annotation)
        if name not in vars(cls) and name not in cls.DECLARED and declared in _DECLARATIONS:
            yield name, f"the value is missing; write {name}: {declared}[TYPE] = {declared}(...)"
        if name not in own and name in vars(cls) and "ClassVar" not in str(annotation):
            yield name, f"it is no option; write {name}: Option[TYPE] = Option(...), or a ClassVar"


def _class_of(annotation: Any) -> str:
    if isinstance(annotation, str):
        match = _CLASS.match(annotation)
        return match[1] if match else ""
    return str(getattr(get_origin(annotation) or annotation, "__name__", ""))


def _in_option(option: Option[Any, Any]) -> _Mistakes:
    name, kind, default, native = option.name, option.kind, option.default, option.native
    if not isinstance(kind, Kind):
        yield name, f"{kind!r} is not a Kind; use one such as INTEGER or seconds(0, 10)"
    if option.variable and kind.read is None:
        yield name, "its kind cannot read a variable; give it a read, or use Option"
    for what, text in (("meaning", option.meaning), ("kind's values", kind.values)):
        if not isinstance(text, str) or not text.strip() or text.endswith("."):
            yield name, f"the {what}, {text!r}, must be a text without a full stop at its end"
    if not isinstance(native, bool) and not _is_keyword(native):
        yield name, f"native={native!r} is no keyword; use True, or the name that C++ has for it"
    if not isinstance(option.also, tuple) or not all(map(_is_keyword, option.also)):
        yield name, f'also={option.also!r} is no tuple of variables; write also=("UCX_TLS",)'
    if type(default).__hash__ is None:
        yield name, f"all instances would share default={default!r}; use None or a tuple instead"
    if option.variable is None or default is not None:
        try:
            checks = OptionChecks(option.owner.BACKEND or option.owner.__name__)
            kind.check(checks, "default", default)
        except (TypeError, ValueError, RuntimeError) as error:
            yield name, str(error)


def _between_options(options: list[Option[Any, Any]]) -> _Mistakes:
    variables: dict[str | None, str] = {None: ""}
    natives: dict[str | None, str] = {None: ""}
    for option in options:
        for names, key in ((variables, option.variable), (natives, option.native_name)):
            first = names.setdefault(key, option.name)
            if key and first != option.name:
                yield option.name, f"the option {first} uses {key} already; choose another name"
    for option in options:
        for variable in option.also:
            user = variables.get(variable)
            if user:
                yield option.name, f"also has {variable}, which {user} uses; leave it out"


def _is_keyword(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
