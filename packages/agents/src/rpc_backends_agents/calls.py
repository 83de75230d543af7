"""Interceptors written in Python: they observe and refuse calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING

from rpc_backends_agents import _C
from rpc_backends_core.spi import RefusedError, at_exit

if TYPE_CHECKING:
    from rpc_backends_agents._C import Call

_log = getLogger(__name__)


class CallInterceptor:
    """Observes and refuses a worker's calls: derive from it, and pass an instance to :func:`intercept`.

    Only methods that the derived class overrides are called, and only for calls of functions:
    ``rpc_sync``, ``rpc_async``, ``remote``, TorchScript functions and operators. Other messages (of RRefs
    and autograd) pass unseen, and so do calls of torch's own: two at shutdown, and one that asks for the
    class of an RRef's value.

    All methods run on one thread of their own, one call after another. Do not make a call in a method if
    this interceptor gets that call too: the method would wait for ever.
    """

    def on_outgoing(self, call: Call) -> None:
        """Look at a call that this worker is about to send.

        :raises RefusedError: to refuse it: the caller gets an error with this text. Any other exception
            refuses it too; the error names the exception.
        """

    def on_incoming(self, call: Call) -> None:
        """Look at a call that has arrived, before it runs.

        TENSORPIPE does not show these calls, so :func:`intercept` refuses an interceptor with this
        method there.

        ``call.function`` is empty if the name could not be read: a policy must refuse such a call.

        :raises RefusedError: as for :meth:`on_outgoing`.
        """

    def on_end(self, call: Call, seconds: float, error: str | None) -> None:
        """Look at a call that has ended. This does not delay the call.

        Called at both ends: at the caller, where ``call.direction`` is ``outgoing``, and at the callee,
        where it is ``incoming`` (not under TENSORPIPE, which does not show incoming calls).

        :param seconds: the time since the call was made, or since it arrived.
        :param error: the text of the error; ``None`` if the call was answered.
        """

    def __rpc_interceptor__(self) -> object:
        """Return the C++ interceptor that calls this object."""
        native = _C.NativeCallInterceptor(
            on_outgoing=self._decision("on_outgoing"),
            on_incoming=self._decision("on_incoming"),
            on_end=self.on_end if self._overrides("on_end") else None,
        )
        # A thread that takes the GIL while the interpreter ends would abort the process.
        at_exit(partial(_stop, weakref.ref(native)))
        self._native = native
        return native.__rpc_interceptor__()

    def _overrides(self, name: str) -> bool:
        return getattr(type(self), name) is not getattr(CallInterceptor, name)

    def _decision(self, name: str) -> Callable[[Call], str] | None:
        """Return a function that gives the reason to refuse a call, or an empty text."""
        if not self._overrides(name):
            return None
        look: Callable[[Call], None] = getattr(self, name)

        def decide(call: Call) -> str:
            try:
                look(call)
            except RefusedError as refusal:
                return str(refusal) or f"{type(self).__name__} refuses the call"
            except BaseException as error:
                _log.exception("%s.%s failed for %s", type(self).__name__, name, call.function)
                return f"{type(self).__name__}.{name} failed: {type(error).__name__}: {error}"
            return ""

        return decide


def _stop(native: weakref.ref[_C.NativeCallInterceptor]) -> None:
    agent = native()
    if agent is not None:
        agent.stop()
