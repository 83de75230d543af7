"""Messages that cannot be pickled or unpickled, and the texts of exceptions of called functions."""

from __future__ import annotations

import contextlib
import itertools
import pickletools
import re
import traceback
from collections.abc import Iterable
from typing import Any

from rpc_backends_core import _settings
from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._errors import ResultError, RpcBackendsError

#: Stands for the worker that has sent a result, where it is not known. `calls` replaces it.
UNKNOWN_WORKER = "the worker that it called"
#: The text of pickle if a module lacks a class or a function.
_MISSING = re.compile(r"Can't get attribute '(?P<name>.+?)' on <module '(?P<module>.+?)'")
#: How the text of an exception of a called function begins.
_WORKER = re.compile(r"On WorkerInfo\(id=\d+, name=(?P<name>[^)]*)\):")
#: The opcodes of texts in a pickle.
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
#: The function that makes the RRef of a pickle.
_RECEIVES_RREF = "_py_rref_receiver"
#: The end of torch's text for a call that needs what its callee does not have.
_TORCHS = (
    "torch: Default RPC pickler does not serialize function code. Ensure that UDFs are defined on both "
    "caller and callee modules."
)
#: How many functions and classes of a pickle an error looks at.
_MOST_CLASSES = 20
#: How many opcodes of a pickle an error looks at: a peer that is refused must not cost much time.
_MOST_OPCODES = 2000
#: Modules that every worker has.
_ALWAYS_THERE = ("builtins.", "copyreg.", "torch.")
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
        raise ResultError(_text(reason, ())) from reason
    return result


def not_pickled(result: Any, error: Exception) -> Any:
    """Return the exception that the caller gets instead of a result that this worker cannot pickle.

    :param result: the result, or the ``RemoteException`` of a function that has raised.
    :raises Exception: ``error``, if RPC is not running: then a program has called torch's ``serialize``.
    """
    if not torch_internals.has_current_agent():
        raise error
    if torch_internals.is_remote_exception(result):
        return torch_internals.remote_exception(
            f"{result.msg}\nThe caller gets a RuntimeError, because this worker cannot pickle the class "
            f"{_path(result.exception_type)}: {_shown(error)}",
            RuntimeError,
        )
    info = torch_internals.current_agent().get_worker_info()
    trace = "".join(traceback.format_exception(error))
    return torch_internals.remote_exception(
        f"On {info}:\nworker {info.name!r} cannot pickle the result, which is of class "
        f"{_path(type(result))}: {_shown(error)}. Return something that pickle supports.\n{trace}",
        RuntimeError,
    )


def not_unpickled(data: bytes, error: Exception) -> Any:
    """Return what stands for a message that this worker cannot unpickle.

    :param data: the pickle: a call, a result, or the exception of a called function.
    :param error: the error of pickle, or of the code that it has run.
    :raises ResultError: it is a result.
    """
    kind, strings, classes = _scanned(data)
    if isinstance(error, RpcBackendsError) and error.of_result:
        raise ResultError(_text(error, classes)) from error
    if kind == "PythonUDF":
        text = _text_for_call(_called(strings), error, classes)
        if isinstance(error, AttributeError):  # a missing function or class: torch's type and words
            return torch_internals.raising_call(AttributeError(f"{text} {_TORCHS}"))
        return torch_internals.raising_call(RuntimeError(text))
    if kind == "RemoteException":
        text = strings[0] if strings else ""
        named = _WORKER.match(text)
        callee = repr(named["name"]) if named else UNKNOWN_WORKER
        me = _me()
        return torch_internals.remote_exception(
            f"worker {me} cannot unpickle the exception that a function has raised on {callee}: "
            f"{_why(error, me, classes)} The exception itself:\n{text}",
            ResultError,
        )
    raise ResultError(_text(error, classes)) from error


def with_exception(data: bytes, result: AttributeError) -> Any:
    """Return what stands for a message for which torch's unpickler has returned an ``AttributeError``.

    It is ``result`` for a result, which becomes an error later. For a call, and for an exception whose
    class this worker lacks, it has more to say.
    """
    reason = torch_internals.why_not_unpickled(result)
    kind = _scanned(data)[0] if reason is not None else ""
    if reason is not None and (
        kind == "PythonUDF"
        or (kind == "RemoteException" and not _settings.returns_unpickling_errors())
    ):
        return not_unpickled(data, reason)
    return result


def _text(reason: Exception, classes: Iterable[str]) -> str:
    agent = torch_internals.current_agent()
    me = _me()
    # This project's own agents, and its agents in front of torch's, know which worker has answered.
    answering = getattr(agent, "answering_worker", None)
    name = answering and answering()
    callee = repr(name) if name else UNKNOWN_WORKER
    tail = ""
    if isinstance(reason, AttributeError):
        variable = _settings.UNPICKLING_ERRORS
        tail = f" {variable}=return returns such an error as the result, as torch does."
    why = _why(reason, me, classes)
    return f"worker {me} cannot unpickle the result that it got from {callee}: {why}{tail}"


def _called(strings: list[str]) -> str:
    """Return what a call calls, from the texts of its pickle."""
    path = ".".join(strings[:2])
    # A method called through an RRef: the name follows the RRef, whose last text is its type.
    if strings[0] == torch_internals.CALLS_OF_METHODS and strings[5:6] == [_RECEIVES_RREF]:
        return f"the method {strings[7]!r} of an RRef" if len(strings) > 7 else path
    return path


def _text_for_call(function: str, reason: Exception, classes: Iterable[str]) -> str:
    me = _me()
    return f"worker {me} cannot unpickle the call of {function}: {_why(reason, me, classes)}"


def _why(reason: Exception, me: str, classes: Iterable[str]) -> str:
    """Return the reason why something cannot be unpickled, and what to do."""
    if isinstance(reason, RpcBackendsError):  # a package refuses it, and says why
        return str(reason)
    missing = _MISSING.search(str(reason))
    if isinstance(reason, AttributeError) and missing is not None:
        name, module = missing["name"], missing["module"]
        return (
            f"module {module!r} has no {name!r} on {me}. Import or define {module}.{name} on both "
            "workers, in a module that both can import, or send something else."
        )
    if isinstance(reason, ImportError) and reason.name:
        needed = [path for path in classes if path.startswith(f"{reason.name}.")]
        what = f", which has {', '.join(needed)}" if needed else ""
        return (
            f"{me} cannot import the module {reason.name!r}{what}: {reason}. Install it there, or send "
            "something else."
        )
    those = [path for path in classes if not path.startswith(_ALWAYS_THERE)]
    what = f" (the pickle names {', '.join(those)})" if those else ""
    return f"{_shown(reason)}{what}. Send something that can be unpickled on {me}."


def _scanned(data: bytes) -> tuple[str, list[str], list[str]]:
    """Read a pickle without executing it.

    :returns: the class of torch's that it begins with, or an empty text; the texts that follow it; the
        functions and classes that it names.
    """
    strings: list[str] = []
    classes: list[str] = []
    stack: list[str] = []  # the texts, as STACK_GLOBAL takes them
    memo: list[str | None] = []
    last: str | None = None
    with contextlib.suppress(ValueError):  # malformed: what has been read is what is known
        for opcode, argument, _ in itertools.islice(pickletools.genops(data), _MOST_OPCODES):
            if opcode.name in _TEXTS:
                last = str(argument)
                strings.append(last)
                stack.append(last)
            elif opcode.name == "MEMOIZE":
                memo.append(last)
            elif opcode.name in {"BINGET", "LONG_BINGET"} and isinstance(argument, int):
                known = memo[argument] if argument < len(memo) else None
                if known is not None:
                    stack.append(known)
            elif opcode.name == "STACK_GLOBAL":
                classes.append(".".join(stack[-2:]))
                last = None
            elif opcode.name != "FRAME":
                last = None
            if len(classes) > _MOST_CLASSES:
                break
    kind = strings[1] if strings[:1] == [torch_internals.PICKLED_FROM] and len(strings) > 1 else ""
    return kind, strings[2:], list(dict.fromkeys(classes))


def _me() -> str:
    return repr(torch_internals.current_agent().get_worker_info().name)


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _path(class_: type) -> str:
    return f"{class_.__module__}.{class_.__qualname__}"


def _unescaped(text: str) -> str:
    """Undo the escape sequences of a text, and leave alone what only looks like one."""

    def undo(escape: re.Match[str]) -> str:
        try:
            return escape[0].encode("ascii").decode("unicode_escape")
        except UnicodeError:
            return escape[0]

    return _ESCAPE.sub(undo, text)
