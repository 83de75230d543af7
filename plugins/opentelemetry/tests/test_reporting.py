"""Spans and metrics of real workers, as a collector gets them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from collector import Collector, Span
from opentelemetry import trace
from torch.distributed import autograd, rpc

from support import steps
from support.command import wait_until
from support.workers import WorkerContext, Workers

BACKENDS = ("ZEROMQ", "TENSORPIPE", "UCX")
TRACER = "test"


# --- what the workers do ----------------------------------------------------------------------------


def leaf() -> int:
    with trace.get_tracer(TRACER).start_as_current_span("inside"):
        return 1


def nested(to: str) -> int:
    return rpc.rpc_sync(to, leaf)


def made_remotely() -> int:
    return 1


@rpc.functions.async_execution
def asynchronous(to: str) -> torch.futures.Future[int]:
    def after(future: torch.futures.Future[int]) -> int:
        return rpc.rpc_sync(to, after_answer) + future.wait()

    return rpc.rpc_async(to, before_answer).then(after)


def before_answer() -> int:
    return 1


def after_answer() -> int:
    return 1


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def double_twice(tensor: torch.Tensor, to: str) -> torch.Tensor:
    return rpc.rpc_sync(to, double, (tensor * 2,))


class Learner:
    """A class with a method that RPC calls."""

    def learn(self) -> int:
        return leaf()


def broken() -> None:
    raise ValueError("broken")


def make_calls(me: WorkerContext) -> None:
    with trace.get_tracer(TRACER).start_as_current_span("program"):
        rpc.rpc_sync("worker1", nested, ("worker2",))
        rpc.remote("worker1", made_remotely).to_here()
        rpc.rpc_sync("worker1", asynchronous, ("worker2",))
        with autograd.context() as context:
            tensor = torch.ones(2, requires_grad=True)
            loss = rpc.rpc_sync("worker1", double_twice, (tensor, "worker2")).sum()
            autograd.backward(context, [loss])
        with pytest.raises(ValueError, match="broken"):
            rpc.rpc_sync("worker1", broken)
        rpc.remote("worker1", Learner).rpc_sync().learn()


def make_builtin_calls(me: WorkerContext, calls: int) -> None:
    for _ in range(calls):
        rpc.rpc_sync("worker1", torch.add, (torch.ones(1), 1))


def leave(me: WorkerContext) -> None:
    rpc.shutdown()


def call_with_own_sdk(me: WorkerContext, url: str) -> list[str]:
    """Configure an SDK, call this worker, and return the names of the spans with their parents'."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    steps.join(me, url, backend="ZEROMQ")
    rpc.rpc_sync("worker0", leaf)
    rpc.shutdown()
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans if span.context}
    return sorted(f"{names[span.parent.span_id]} {span.name}" for span in spans if span.parent)


def loaded_modules(me: WorkerContext, url: str) -> list[str]:
    steps.join(me, url, backend="ZEROMQ")
    rpc.shutdown()
    return sorted(name for name in sys.modules if name.startswith("rpc_backends_opentelemetry"))


def environment(collector: Collector) -> dict[str, str]:
    return {
        "RPC_BACKENDS_OTEL": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_SERVICE_NAME": "test",
    }


@pytest.fixture(scope="module", params=BACKENDS)
def collected(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Collector]:
    """Return what three workers have sent to a collector."""
    folder = tmp_path_factory.mktemp("otel")
    with Collector() as collector:
        env = {**environment(collector), "OTEL_METRIC_EXPORT_INTERVAL": "100"}
        with Workers(3, env=env) as workers:
            workers.run(steps.join, f"file://{folder}/store", backend=request.param)
            workers[0].call(make_calls)
            # A worker's state is read from time to time: one that lives a shorter time reports none.
            wait_until(lambda: "rpc_backends.rrefs.num_owner_rrefs" in collector.metrics())
            workers.run(leave)
        yield collector


def joined(caller: Span, callee: Span) -> bool:
    """Return whether a span at the callee is below one at the caller, in the same trace."""
    return (callee.trace, callee.parent) == (caller.trace, caller.id) and callee.is_server


# --- traces -----------------------------------------------------------------------------------------


def test_nested_calls_are_one_trace(collected: Collector) -> None:
    program = collected.span("program", "worker0")
    calls = [
        collected.span("nested", "worker0"),
        collected.span("nested", "worker1", is_server=True),
        collected.span("leaf", "worker1"),
        collected.span("leaf", "worker2", is_server=True),
        collected.span("inside", "worker2"),  # of the program, in the function
    ]
    assert calls[0].parent == program.id
    assert {call.trace for call in calls} == {program.trace}
    for above, below in itertools.pairwise(calls):
        assert below.parent == above.id
    assert calls[0].begin <= calls[1].begin <= calls[1].end <= calls[0].end + 1_000_000


def test_remote_and_fetch_are_joined(collected: Collector) -> None:
    for name in ("made_remotely", "PYTHON_RREF_FETCH_CALL"):
        caller = collected.span(name, "worker0")
        assert joined(caller, collected.span(name, "worker1", is_server=True))
        assert caller.parent == collected.span("program", "worker0").id


def test_methods_of_rrefs_have_their_names(collected: Collector) -> None:
    caller = collected.span("learn", "worker0")
    assert caller.attributes["rpc.method"] == f"{__name__}.Learner.learn"
    served = collected.span("learn", "worker1", is_server=True)
    assert joined(caller, served)
    assert served.name == caller.name


def test_calls_of_async_execution_are_joined(collected: Collector) -> None:
    """Also those that its callbacks make, which torch runs on other threads."""
    served = collected.span("asynchronous", "worker1", is_server=True)
    assert joined(collected.span("asynchronous", "worker0"), served)
    for name in ("before_answer", "after_answer"):
        caller = collected.span(name, "worker1")
        assert (caller.trace, caller.parent) == (served.trace, served.id)
        assert joined(caller, collected.span(name, "worker2", is_server=True))
    assert served.end >= collected.span("after_answer", "worker1").end


def test_backward_pass_is_joined(collected: Collector) -> None:
    """It runs on threads of the autograd engine: from worker0 to 1, to 2, and back."""
    spans = [span for span in collected.spans if span.name == "BACKWARD_AUTOGRAD_REQ"]
    served = [span for span in spans if span.is_server]
    assert sorted(span.worker for span in served) == ["worker0", "worker1", "worker1", "worker2"]
    made = {span.id: span for span in spans if not span.is_server}
    assert all(joined(made[span.parent], span) for span in served)
    program = collected.span("program", "worker0")
    above = {program.id, *(span.id for span in served)}
    assert all(span.parent in above for span in made.values())
    assert [span.worker for span in made.values() if span.parent == program.id] == ["worker0"]


def test_attributes_follow_the_conventions(collected: Collector) -> None:
    span = collected.span("nested", "worker0")
    assert span.attributes["rpc.system.name"] == "torch"
    assert span.attributes["rpc.method"] == f"{__name__}.nested"
    assert span.attributes["rpc.response.status_code"] == "OK"
    assert span.attributes["server.address"] == "worker1"
    served = collected.span("nested", "worker1", is_server=True)
    assert served.attributes["client.address"] == "worker0"
    assert "error.type" not in span.attributes


def test_exception_of_a_function_is_an_error(collected: Collector) -> None:
    for worker, is_server in (("worker0", False), ("worker1", True)):
        span = collected.span("broken", worker, is_server=is_server)
        assert span.is_error
        assert span.attributes["error.type"] == "RAISED"


# --- metrics ----------------------------------------------------------------------------------------


def test_durations_are_counted_by_method_and_status(collected: Collector) -> None:
    for worker, metric, peer in (
        ("worker0", "rpc.client.call.duration", ("server.address", "worker1")),
        ("worker1", "rpc.server.call.duration", ("client.address", "worker0")),
    ):
        points = {
            (point.attributes["rpc.method"].rpartition(".")[2], point.attributes[peer[0]]): point
            for point in collected.points(metric, worker)
            if peer[0] in point.attributes
        }
        assert points["nested", peer[1]].value == 1
        assert points["broken", peer[1]].attributes["rpc.response.status_code"] == "RAISED"


def test_state_of_the_agent_is_reported(collected: Collector) -> None:
    assert {
        "rpc_backends.request.size",
        "rpc_backends.agent.client_active_calls",
        "rpc_backends.agent.num_idle_threads",
        "rpc_backends.rrefs.num_owner_rrefs",
        "rpc_backends.autograd.num_autograd_contexts",
    } <= collected.metrics()


# --- settings ---------------------------------------------------------------------------------------


def test_sdk_of_the_program_is_used(tmp_path: Path) -> None:
    with Workers(1, env={"RPC_BACKENDS_OTEL": "1"}) as workers:
        name = f"{__name__}.leaf"
        names = workers[0].call(call_with_own_sdk, f"file://{tmp_path}/store")
        assert names == [f"{name} inside", f"{name} {name}"]


def test_without_the_variable_nothing_is_loaded(tmp_path: Path) -> None:
    with Workers(1) as workers:
        loaded = workers[0].call(loaded_modules, f"file://{tmp_path}/store")
        assert loaded == ["rpc_backends_opentelemetry", "rpc_backends_opentelemetry.hooks"]


def test_nobody_needs_an_exporter_for_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that exports metrics to Prometheus only has no exporter for OTLP."""
    from rpc_backends_opentelemetry import sdk  # not in the workers, which look at what is loaded

    monkeypatch.setattr(sdk, "entry_points", lambda **_wanted: [])
    assert sdk._exporters("logs") == []
    with pytest.raises(sdk.SettingError, match="OTEL_METRICS_EXPORTER is not installed"):
        sdk._exporters("metrics")


def test_sampler_decides_for_whole_traces(tmp_path: Path) -> None:
    """All calls are counted, and a callee starts no trace that its caller has not sampled."""
    with Collector() as collector:
        env = {
            **environment(collector),
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.1",
        }
        with Workers(2, env=env) as workers:
            workers.run(steps.join, f"file://{tmp_path}/store", backend="ZEROMQ")
            workers[0].call(make_builtin_calls, 2000)
            workers.run(leave)
        calls = [span for span in collector.spans if span.name == "torch.ops.aten.add"]
        made = {span.id for span in calls if not span.is_server}
        assert 100 < len(made) < 320  # 200 are expected, with a standard deviation of 13
        assert made == {span.parent for span in calls if span.is_server}
        (count,) = [
            point.value
            for point in collector.points("rpc.client.call.duration", "worker0")
            if point.attributes["rpc.method"] == "torch.ops.aten.add"
        ]
        assert count == 2000
