"""The options of a backend, read from its construct handler and its options type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backends_core.spi import Backend

# The handler takes these two by position; the defaults are torch's.
_TORCHS_DEFAULTS = (60.0, "env://")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FIELD = re.compile(r"^:param\s+(?:\S+\s+)?(\w+):\s*(.*?)(?=^:|^\s*$|\Z)", re.MULTILINE | re.DOTALL)
# Sphinx markup: ``x``, `x`, :data:`x`.
_ROLE = re.compile(r"(?::\w+:)?`+~?([^`]*)`+")


@dataclass(frozen=True)
class Option:
    """One keyword of ``construct_rpc_backend_options`` for a backend.

    :ivar type: as written in the source; None if there is no annotation.
    :ivar default: in words if the options type has them, otherwise its ``repr``; None if the option is
        required.
    :ivar meaning: from the handler's docstring (``:param name: meaning``).
    :ivar declared_by: ``handler``; or ``options type`` if the handler takes any keyword and the
        options class declares this one.
    :ivar values: the valid values in words, with unit and limits, if the options type has them.
    :ivar variable: the environment variable that is read if a program leaves the option out.
    """

    name: str
    type: str | None
    default: str | None
    meaning: str
    declared_by: str
    values: str | None = None
    variable: str | None = None


def options_of(backend: Backend) -> list[Option]:
    """Return the options in the handler's order; empty if no signature can be read.

    An options type may have a class method ``options_in_words``, which returns a dict for each option by
    name, with any of ``default``, ``values`` and ``variable``.
    """
    handler = backend.construct_rpc_backend_options_handler
    declared = _parameters(handler)
    of_type = _parameters(backend.options_type) if backend.options_type else {}
    meanings = _meanings(handler)
    options = []
    for position, parameter in enumerate(declared.values()):
        if parameter.kind in _VARIADIC:
            continue
        default = parameter.default
        if default is parameter.empty and position < len(_TORCHS_DEFAULTS):
            default = _TORCHS_DEFAULTS[position]
        kind = _type(parameter) or _type(of_type.get(parameter.name))
        meaning = meanings.get(parameter.name, "")
        options.append(Option(parameter.name, kind, _shown(default), meaning, "handler"))
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in declared.values()):
        options += [
            Option(name, _type(parameter), _shown(parameter.default), "", "options type")
            for name, parameter in of_type.items()
            if name not in declared and parameter.kind not in _VARIADIC
        ]
    words: dict[str, dict[str, str | None]]
    words = getattr(backend.options_type, "options_in_words", dict)()
    return [replace(option, **_plain(words.get(option.name, {}))) for option in options]


def required_options(backend: Backend) -> list[str]:
    """Return the names of the options without a default."""
    known = options_of(backend)
    return [
        option.name
        for option in known
        if option.default is None and option.declared_by == "handler"
    ]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}  # written in C, without a signature


def _type(parameter: inspect.Parameter | None) -> str | None:
    if parameter is None or parameter.annotation is parameter.empty:
        return None
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _shown(default: Any) -> str | None:
    return None if default is inspect.Parameter.empty else repr(default)


def _plain(words: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        key: text and _ROLE.sub(r"\1", text)
        for key, text in words.items()
        if key in ("default", "values", "variable")
    }


def _meanings(function: Callable[..., Any]) -> dict[str, str]:
    meanings = _FIELD.findall(inspect.getdoc(function) or "")
    return {name: " ".join(_ROLE.sub(r"\1", text).split()).rstrip(".") for name, text in meanings}
