"""Errors of results: exceptions of called functions, and results that this worker cannot unpickle."""

from __future__ import annotations

import re
from typing import Any

from rpc_backends_core import _settings
from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._errors import ResultError

#: The text of pickle if a module lacks a class or a function.
_MISSING = re.compile(r"Can't get attribute '(?P<name>.+?)' on <module '(?P<module>.+?)'")
#: The escape sequences that torch undoes in the text of an exception.
_ESCAPE = re.compile(
    r"\\(?:[\\'\"abfnrtv\n]|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\})"
)


def checked(result: Any) -> Any:
    """Return what torch's ``_handle_exception`` shall raise, or return, for a result.

    :param result: an ``AttributeError``; or a ``RemoteException``, which gets a text that torch decodes.
    :raises ResultError: this worker cannot unpickle the result.
    """
    if not isinstance(result, AttributeError):
        return torch_internals.with_text(result, _unescaped)
    reason = torch_internals.why_not_unpickled(result)
    if reason is not None and not _settings.returns_unpickling_errors():
        raise ResultError(_text(reason)) from reason
    return result


def _text(reason: AttributeError) -> str:
    agent = torch_internals.current_agent()
    me = repr(agent.get_worker_info().name)
    # This project's own agents, and its agents in front of torch's, know which worker has answered.
    answering = getattr(agent, "answering_worker", None)
    callee = (answering and answering()) or "the worker that it called"
    head = f"worker {me} cannot unpickle the result that it got from {callee}: "
    tail = (
        f"{_settings.UNPICKLING_ERRORS}=return returns such an error as the result, as torch does."
    )
    missing = _MISSING.search(str(reason))
    if missing is None:
        return f"{head}AttributeError: {reason}. Return something else. {tail}"
    name, module = missing["name"], missing["module"]
    return (
        f"{head}module {module!r} has no {name!r} on {me}. Import or define {module}.{name} on both "
        f"workers, in a module that both can import, or return something else. {tail}"
    )


def _unescaped(text: str) -> str:
    """Undo the escape sequences of a text, and leave alone what only looks like one."""

    def undo(escape: re.Match[str]) -> str:
        try:
            return escape[0].encode("ascii").decode("unicode_escape")
        except UnicodeError:
            return escape[0]

    return _ESCAPE.sub(undo, text)
