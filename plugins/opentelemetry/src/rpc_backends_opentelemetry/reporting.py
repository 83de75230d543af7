"""Reports the calls of an agent: C++ makes spans and counts, and a thread here exports spans."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping
from logging import getLogger
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry._logs import get_logger_provider

from rpc_backends_agents import Telemetry, keep_audit_entries, report_calls, take_audit_entries
from rpc_backends_core.spi import torch_internals
from rpc_backends_opentelemetry import context, logs, sdk
from rpc_backends_opentelemetry.metrics import Durations, Instruments
from rpc_backends_opentelemetry.spans import Spans

_log = getLogger(__name__)
#: Seconds before the first export of spans and values to the SDK, and between two exports.
_FIRST = 0.05
_PERIOD = 0.5
#: Seconds that the exporters get when the agent shuts down.
_FLUSH = 5.0


def report(agent: Any, backend: str) -> Any:
    """Report the calls of an agent that has not started.

    :returns: the agent to install.
    """
    reporter = Reporter.of_process()
    worker = agent.get_worker_info().name
    sdk.configure(worker)
    context.install()
    reporter.use(agent, backend)
    return report_calls(agent, reporter.telemetry, at_shutdown=reporter.rest)


class Reporter:
    """The spans and metrics of this process. Its counts go on if RPC is started again."""

    _lock = threading.Lock()
    _of_process: Reporter | None = None

    def __init__(self) -> None:
        self.telemetry = Telemetry()
        keep_audit_entries()
        self._durations = Durations(self.telemetry, self._peer_name)
        self._agent: Callable[[], Any] = lambda: None
        self._backend = ""
        self._names: dict[int, str] = {}
        self._spans: Spans | None = None
        self._instruments: Instruments | None = None
        self._exporting = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_process(cls) -> Reporter:
        """Return the reporter of this process."""
        with cls._lock:
            if cls._of_process is None:
                cls._of_process = cls()
            return cls._of_process

    def use(self, agent: Any, backend: str) -> None:
        """Report an agent that is about to start."""
        self._agent, self._backend = weakref.ref(agent), backend
        self._names = {}
        self._find_providers()
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(self._agent, self._stopped),
            name="rpc-opentelemetry",
            daemon=True,
        )
        self._thread.start()

    def rest(self) -> None:
        """Export what is left after the agent has shut down."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._find_providers()
        self._export()
        # Exporters try again for longer if no collector listens.
        flushing = threading.Thread(target=_flush, name="rpc-opentelemetry-flush", daemon=True)
        flushing.start()
        flushing.join(_FLUSH)
        if self._instruments is not None:
            self._instruments.set_gauges({})

    def _run(self, agent: Callable[[], Any], stopped: threading.Event) -> None:
        period = _FIRST
        # An agent that could not start goes away without a shutdown.
        while not stopped.wait(period) and agent() is not None:
            self._find_providers()
            self._export()
            if self._instruments is not None:
                self._instruments.set_gauges(_state(agent()))
            period = _PERIOD

    def _find_providers(self) -> None:
        """Look for an SDK; if there was none at the start of RPC, the program may configure one later."""
        provider = trace.get_tracer_provider()
        if self._spans is None and not isinstance(provider, trace.ProxyTracerProvider):
            try:
                self._spans = Spans(provider)
                self.telemetry.sample(self._spans.ratio)
            except TypeError as error:
                _log.debug("no spans of RPC: %s", error)
        meters = metrics.get_meter_provider()
        if self._instruments is None and hasattr(meters, "force_flush"):
            self._instruments = Instruments(self.telemetry, self._peer_name)
            try:
                self._durations.follow(meters)
            except TypeError as error:
                _log.warning("no durations of RPC calls: %s", error)

    def _export(self) -> None:
        with self._exporting:
            for span in self.telemetry.take_spans():
                if self._spans is not None:
                    self._spans.emit(span, self._peer_name(span), self._backend)
            for entry in take_audit_entries():
                logs.emit(entry, self._backend)

    def _peer_name(self, call: Mapping[str, Any]) -> str:
        """Return the name of the other worker of a call; empty if it is not known."""
        name, worker = str(call["peer"]), int(call["peer_id"])
        agent = self._agent()
        if not name and worker >= 0 and worker not in self._names and agent is not None:
            with contextlib.suppress(RuntimeError):  # the agent has stopped
                self._names = {info.id: info.name for info in agent.get_worker_infos()}
        return name or self._names.get(worker, "")


def _state(agent: Any) -> dict[str, float]:
    """Return the values of the gauges: of an agent, of RRefs and of distributed autograd."""
    state: dict[str, float] = {}
    for values in ({} if agent is None else agent.get_debug_info(), torch_internals.debug_info()):
        for name, value in values.items():
            with contextlib.suppress(ValueError):  # not a number
                state[f"rpc_backends.{name}"] = float(value)
    return state


def _flush() -> None:
    providers = (trace.get_tracer_provider(), metrics.get_meter_provider(), get_logger_provider())
    for provider in providers:
        flush = getattr(provider, "force_flush", None)
        if flush is not None:
            with contextlib.suppress(Exception):  # the exporters log their errors
                flush()
