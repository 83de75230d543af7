"""Hook packages observe, wrap, replace and refuse. The error of a failing hook names its package."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import pytest
from torch.distributed import rpc

from core.kit import Site, at_once, calls
from rpc_backends_core import _api as functions
from rpc_backends_core import _hooks
from rpc_backends_core._bridge.install_agent import agent_to_install
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._hooks import HookWarning
from rpc_backends_core._record import Record
from rpc_backends_core._registry import Registry
from rpc_backends_core.spi import BackendLoadError, HookError, RefusedError


def loaded_packages() -> list[Record]:
    """Return the records of the hook packages of this process."""
    records: list[Record] = _hooks.loaded(default_registry()).records
    return records


class Backend:
    """A registered backend, which counts the calls of its handlers."""

    def __init__(self, name: str = "MINE", error: BaseException | None = None) -> None:
        self.constructed: list[Any] = []
        self.initialised: list[Any] = []
        self.error = error
        functions.register_backend(name, self.construct, self.init)

    def construct(self, rpc_timeout: float, init_method: str, **options: Any) -> Any:
        self.constructed.append((rpc_timeout, init_method, options))
        if self.error is not None:
            raise self.error
        return "options"

    def init(self, **arguments: Any) -> Any:
        self.initialised.append(arguments)
        if self.error is not None:
            raise self.error
        return agent_to_install("agent")


WRAP_ALL = """
    @hookimpl(wrapper=True)
    def rpc_backends_construct_options(backend, rpc_timeout, init_method, options):
        CALLS.append(("construct", backend, rpc_timeout, init_method, dict(options)))
        return (yield)

    @hookimpl(wrapper=True)
    def rpc_backends_init_backend(backend, args, kwargs):
        CALLS.append(("init", backend, args, dict(kwargs)))
        return (yield)

    @hookimpl(wrapper=True)
    def rpc_backends_agent(backend, agent):
        CALLS.append(("agent", backend, agent))
        return (yield)
"""

# --- observing, wrapping, replacing ----------------------------------------------------------------


def test_a_wrapper_sees_every_step_of_a_start(site: Site, registry: Registry) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    Backend()
    functions.construct_rpc_backend_options("MINE", 5, "file:///x", window=3)
    assert functions.init_backend("MINE", name="w", rank=0) == "agent"
    assert calls(module) == [
        ("construct", "MINE", 5, "file:///x", {"window": 3}),
        ("init", "MINE", (), {"name": "w", "rank": 0}),
        ("agent", "MINE", "agent"),
    ]


def test_an_agent_without_init_rpc_has_no_backend(site: Site, registry: Registry) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    Backend()
    functions.init_backend("MINE")
    assert agent_to_install("other") == "other"
    assert calls(module)[-1] == ("agent", None, "other")


def test_torchs_own_tensorpipe_passes_through_the_hooks(site: Site, with_torchs: Registry) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    options = functions.construct_rpc_backend_options("TENSORPIPE", num_worker_threads=3)
    assert isinstance(options, rpc.TensorPipeRpcBackendOptions)
    assert calls(module) == [("construct", "TENSORPIPE", 60.0, "env://", {"num_worker_threads": 3})]


def test_a_wrapper_may_replace_the_result(site: Site, registry: Registry) -> None:
    site.add_hooks(
        "faults",
        """
        @hookimpl(wrapper=True)
        def rpc_backends_agent(agent):
            return f"wrapped {yield}"
        """,
    )
    backend = Backend()
    assert functions.init_backend("MINE") == "wrapped agent"
    assert len(backend.initialised) == 1


def test_a_plain_hook_that_returns_something_replaces_the_handler(
    site: Site, registry: Registry
) -> None:
    site.add_hooks(
        "policy",
        """
        @hookimpl
        def rpc_backends_construct_options(backend, options):
            return "from policy" if "cheap" in options else None
        """,
    )
    backend = Backend()
    assert functions.construct_rpc_backend_options("MINE", cheap=True) == "from policy"
    assert backend.constructed == []
    assert functions.construct_rpc_backend_options("MINE") == "options"


@pytest.mark.parametrize("hook", ["construct_options(options", "init_backend(kwargs"])
def test_a_hook_cannot_change_its_arguments(site: Site, registry: Registry, hook: str) -> None:
    argument = hook.partition("(")[2]
    source = f"@hookimpl\ndef rpc_backends_{hook}): {argument}['name'] = 'mine'\n"
    site.add_hooks("odd", source)
    Backend()
    with pytest.raises(HookError, match=r"rpc-hooks-odd 1\.0 .*does not support item assignment"):
        functions.construct_rpc_backend_options("MINE", name="w")
        functions.init_backend("MINE", name="w")


def test_wrappers_of_several_packages_nest(site: Site, registry: Registry) -> None:
    for name in ("a", "b"):
        site.add_hooks(
            name,
            f"""
            @hookimpl(wrapper=True)
            def rpc_backends_agent(agent):
                return "{name}(" + (yield) + ")"
            """,
        )
    assert agent_to_install("agent") in ("a(b(agent))", "b(a(agent))")


def test_hooks_may_be_methods_of_an_object(site: Site, registry: Registry) -> None:
    site.add(
        "rpc-hooks-of-object",
        hooks={"objects": "rpc_hooks_of_object:HOOKS"},
        modules={
            "rpc_hooks_of_object": """
                from rpc_backends_core import hookimpl
                class Hooks:
                    @hookimpl
                    def rpc_backends_agent(self, agent):
                        return "theirs"
                HOOKS = Hooks()
            """
        },
    )
    assert agent_to_install("agent") == "theirs"


def test_hooks_are_imported_at_first_use(site: Site, registry: Registry) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    Backend()
    functions.records()
    assert module not in sys.modules
    functions.construct_rpc_backend_options("MINE")
    assert module in sys.modules


def test_refresh_adds_and_removes_hook_packages(site: Site, registry: Registry) -> None:
    hook = "@hookimpl\ndef rpc_backends_agent(agent): return __name__\n"
    first = site.add_hooks("first", hook)
    assert agent_to_install("agent") == first
    site.remove("rpc-hooks-first")
    second = site.add_hooks("second", hook)
    functions.refresh()
    assert agent_to_install("agent") == second


def test_a_hook_package_may_use_a_backend_at_import(site: Site, registry: Registry) -> None:
    site.add_backend("PIGEON")
    site.add_hooks(
        "asking",
        """
        from rpc_backends_core import BackendType
        BackendType.PIGEON.value

        @hookimpl
        def rpc_backends_agent(agent):
            return "theirs"
        """,
    )
    # Loading the plugin notifies the hooks, so the hook package is imported. It uses the same plugin.
    registry.backend("PIGEON")
    assert agent_to_install("agent") == "theirs"
    assert [(package.state, package.error) for package in loaded_packages()] == [("loaded", None)]


def test_a_hook_package_may_load_a_backend_first(site: Site, registry: Registry) -> None:
    site.add_backend("PIGEON")
    site.add_hooks(
        "asking",
        """
        from rpc_backends_core import BackendType
        BackendType.PIGEON.value

        @hookimpl
        def rpc_backends_agent(agent):
            return "theirs"
        """,
    )
    assert agent_to_install("agent") == "theirs"


# --- refusing, and the handler's own failure -------------------------------------------------------


def test_a_refusal_reaches_the_caller_and_the_handler_is_not_called(
    site: Site, registry: Registry
) -> None:
    site.add_hooks(
        "policy",
        """
        @hookimpl(wrapper=True)
        def rpc_backends_init_backend(backend):
            raise RefusedError(f"{backend} is not allowed here")
            yield
        """,
    )
    backend = Backend()
    for _ in range(2):  # a refusal is no defect, so the package stays in use
        with pytest.raises(RefusedError, match="MINE is not allowed here"):
            functions.init_backend("MINE")
    assert backend.initialised == []
    assert [(package.state, package.error) for package in loaded_packages()] == [("loaded", None)]


@pytest.mark.parametrize(
    "error", [LookupError("mine"), TypeError("mine"), KeyboardInterrupt(), SystemExit(3)]
)
def test_the_handlers_own_exception_passes_through_wrappers_unchanged(
    site: Site, registry: Registry, error: BaseException
) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    backend = Backend(error=error)
    with pytest.raises(type(error)) as caught:
        functions.construct_rpc_backend_options("MINE")
    assert caught.value is error
    assert len(backend.constructed) == 1
    assert len(calls(module)) == 1
    assert [(package.state, package.error) for package in loaded_packages()] == [("loaded", None)]


def test_a_wrapper_may_turn_the_handlers_failure_into_a_result(
    site: Site, registry: Registry
) -> None:
    site.add_hooks(
        "retrying",
        """
        @hookimpl(wrapper=True)
        def rpc_backends_init_backend(backend):
            try:
                return (yield)
            except LookupError:
                return "rescued"
        """,
    )
    Backend(error=LookupError("mine"))
    assert functions.init_backend("MINE") == "rescued"


# --- packages that cannot be loaded -----------------------------------------------------------------

UNLOADABLE = {
    "no generator": """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            return 1
    """,
    "unknown argument": """
        @hookimpl
        def rpc_backends_construct_options(backend, no_such_argument):
            return 1
    """,
    "unknown hook": """
        @hookimpl
        def rpc_backends_construct_option(backend):
            return 1
    """,
    "failing import": "raise OSError('boom')",
    "exit at import": "sys.exit(1)",
    "syntax": "def broken(:",
}


@pytest.mark.parametrize("defect", UNLOADABLE)
def test_an_unloadable_package_is_named_and_skipped(
    site: Site, registry: Registry, defect: str
) -> None:
    site.add_hooks("broken", UNLOADABLE[defect])
    healthy = site.add_hooks("healthy", WRAP_ALL)
    backend = Backend()
    with pytest.warns(HookWarning) as warned:
        assert functions.construct_rpc_backend_options("MINE", window=1) == "options"
    assert [warning.category for warning in warned] == [HookWarning], list(map(str, warned))
    assert "rpc-hooks-broken 1.0" in str(warned[0].message)
    assert "pip uninstall rpc-hooks-broken" in str(warned[0].message)
    assert backend.constructed == [(60.0, "env://", {"window": 1})]
    states = {
        package.distribution: (package.state, package.error is None)
        for package in loaded_packages()
    }
    assert states == {"rpc-hooks-broken": ("failed", False), "rpc-hooks-healthy": ("loaded", True)}
    # From now on the broken package is treated as if it were not installed.
    seen = len(calls(healthy))
    assert functions.construct_rpc_backend_options("MINE") == "options"
    assert len(calls(healthy)) == seen + 1


def test_each_unloadable_package_is_reported(site: Site, registry: Registry) -> None:
    site.add_hooks("a", "raise OSError('boom')")
    site.add_hooks("b", "def broken(:")
    with pytest.warns(HookWarning) as warned:
        assert agent_to_install("agent") == "agent"
    packages = sorted(str(warning.message).partition("rpc-hooks-")[2][0] for warning in warned)
    assert packages == ["a", "b"]


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_BROKEN", "RPC_BACKENDS_BROKEN_LEVEL"])
@pytest.mark.parametrize("defect", UNLOADABLE)
def test_a_variable_makes_an_unloadable_package_an_error(
    site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch, defect: str, variable: str
) -> None:
    """A user who sets a variable of a package relies on the package, so no call continues without it."""
    monkeypatch.setenv(variable, "something")
    site.add_hooks("broken", UNLOADABLE[defect])
    site.add_hooks("healthy", WRAP_ALL)
    backend = Backend()
    for call in (functions.construct_rpc_backend_options, functions.init_backend):
        with pytest.raises(HookError) as caught:
            call("MINE")
        cause = caught.value.__cause__
        assert cause is not None
        for part in (
            f"{variable} is set",
            "rpc-hooks-broken 1.0",
            f"{type(cause).__name__}: {cause}",
            "pip uninstall rpc-hooks-broken",
            f"Unset {variable} to run without it",
        ):
            assert part in str(caught.value)
    assert (backend.constructed, backend.initialised) == ([], [])
    with pytest.raises(HookError, match="rpc-hooks-broken"):
        agent_to_install("agent")


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_BROKENNESS", "RPC_BACKENDS_OTHER", "BROKEN"])
def test_another_packages_variable_makes_no_error(
    site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "something")
    site.add_hooks("broken", "raise OSError('boom')")
    with pytest.warns(HookWarning, match="rpc-hooks-broken"):
        assert agent_to_install("agent") == "agent"


def test_a_variable_of_a_working_package_makes_no_error(
    site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_HEALTHY", "something")
    site.add_hooks("healthy", WRAP_ALL)
    assert agent_to_install("agent") == "agent"


def test_refresh_loads_a_repaired_package(
    site: Site, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_BROKEN", "something")
    site.add_hooks("broken", "raise OSError('boom')")
    with pytest.raises(HookError):
        agent_to_install("agent")
    site.remove("rpc-hooks-broken")
    module = site.add_hooks("broken", WRAP_ALL)
    functions.refresh()
    assert agent_to_install("agent") == "agent"
    assert calls(module) == [("agent", None, "agent")]


# --- hooks that fail in a call ----------------------------------------------------------------------

BREAKING_BEFORE = """
    @hookimpl(wrapper=True)
    def rpc_backends_construct_options(backend):
        raise KeyError("my own bug")
        return (yield)
"""
BREAKING_AFTER = """
    @hookimpl(wrapper=True)
    def rpc_backends_construct_options(backend):
        result = yield
        return result.no_such_attribute
"""
#: Hooks that fail, with the type of the cause (None if pluggy's rules are broken) and part of the error.
FAILING = {
    "before the handler": (BREAKING_BEFORE, KeyError, "my own bug"),
    "after the handler": (BREAKING_AFTER, AttributeError, "no_such_attribute"),
    "in its place": (
        """
        @hookimpl
        def rpc_backends_construct_options(backend):
            return 1 / 0
        """,
        ZeroDivisionError,
        "division by zero",
    ),
    "in a function it calls": (
        """
        def helper():
            return 1 / 0
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            yield
            return helper()
        """,
        ZeroDivisionError,
        "division by zero",
    ),
    "in a library it calls": (
        """
        import json
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            json.loads("{")
            return (yield)
        """,
        ValueError,
        "Expecting property name",
    ),
    "no yield": (
        """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            if False:
                yield
        """,
        None,
        "ended before its `yield`",
    ),
    "two yields": (
        """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            yield
            return (yield)
        """,
        None,
        "second `yield`",
    ),
    "nothing returned": (
        """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            yield
        """,
        None,
        "returned nothing",
    ),
}


@pytest.mark.parametrize("failure", FAILING)
def test_a_failing_hook_is_an_error_that_names_it(
    site: Site, registry: Registry, failure: str
) -> None:
    source, cause, words = FAILING[failure]
    site.add_hooks("broken", source)
    for healthy in ("a", "z"):  # one hook wraps the broken one, the other is wrapped by it
        site.add_hooks(healthy, WRAP_ALL)
    Backend()
    for _ in range(2):  # the package stays, and fails again
        with pytest.raises(HookError) as caught:
            functions.construct_rpc_backend_options("MINE")
        for part in (
            "the hook rpc_backends_construct_options",
            "rpc-hooks-broken 1.0",
            words,
            "pip uninstall rpc-hooks-broken",
        ):
            assert part in str(caught.value)
        assert "rpc-hooks-a" not in str(caught.value)
        assert "rpc-hooks-z" not in str(caught.value)
        if cause is None:
            assert caught.value.__cause__ is None
        else:
            assert isinstance(caught.value.__cause__, cause)
    assert {package.state for package in loaded_packages()} == {"loaded"}


def test_a_failing_method_names_its_own_package(site: Site, registry: Registry) -> None:
    """The error names the right package even if the hooks of several come from one library."""
    site.add(
        "hook-library",
        modules={
            "hook_library": """
                from rpc_backends_core.spi import hookimpl
                class Base:
                    broken = False
                    @hookimpl(wrapper=True)
                    def rpc_backends_agent(self, agent):
                        if self.broken:
                            raise OSError("in the library")
                        return (yield)
            """
        },
    )
    for name, made in (("a", "Base()"), ("b", "type('Own', (Base,), {'broken': True})()")):
        site.add(
            f"rpc-hooks-{name}",
            hooks={name: f"rpc_hooks_{name}:HOOKS"},
            modules={f"rpc_hooks_{name}": f"from hook_library import Base\nHOOKS = {made}\n"},
        )
    with pytest.raises(HookError, match=r"rpc_backends_agent of the .*rpc-hooks-b 1\.0") as caught:
        agent_to_install("agent")
    assert isinstance(caught.value.__cause__, OSError)


def test_a_failing_hook_stays_in_use(site: Site, registry: Registry) -> None:
    """A hook that fails in one call is called again in the next."""
    module = site.add_hooks(
        "failing",
        """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend, options):
            CALLS.append(backend)
            if "bad" in options:
                raise OSError("mine")
            return "safe " + (yield)
        """,
    )
    backend = Backend()
    with pytest.raises(HookError):
        functions.construct_rpc_backend_options("MINE", bad=1)
    assert backend.constructed == []
    assert functions.construct_rpc_backend_options("MINE") == "safe options"
    assert calls(module) == ["MINE", "MINE"]


def test_a_wrapper_may_translate_the_handlers_exception(site: Site, registry: Registry) -> None:
    site.add_hooks(
        "translating",
        """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            try:
                return (yield)
            except LookupError as error:
                raise ValueError("in other words") from error
        """,
    )
    Backend(error=LookupError("mine"))
    with pytest.raises(ValueError, match=r"^in other words$"):
        functions.construct_rpc_backend_options("MINE")


def test_a_wrapper_may_return_none_for_none(site: Site, registry: Registry) -> None:
    site.add_hooks("tracing", WRAP_ALL)
    functions.register_backend(
        "EMPTY", lambda rpc_timeout, init_method: None, lambda **kwargs: None
    )
    assert functions.init_backend("EMPTY") is None


def test_a_hook_failing_in_an_inner_call_is_named_once(site: Site, registry: Registry) -> None:
    """One backend's handler constructs another backend's options. The hook fails in that inner call."""
    site.add_hooks(
        "broken",
        """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            if backend == "INNER":
                raise OSError("mine")
            return (yield)
        """,
    )
    inner = Backend("INNER")
    functions.register_backend(
        "OUTER",
        lambda rpc_timeout, init_method: functions.construct_rpc_backend_options("INNER"),
        lambda **kwargs: None,
    )
    with pytest.raises(HookError) as caught:
        functions.construct_rpc_backend_options("OUTER")
    assert str(caught.value).count("rpc-hooks-broken 1.0") == 1
    assert isinstance(caught.value.__cause__, OSError)
    assert inner.constructed == []


# --- the resolved backend ---------------------------------------------------------------------------


def test_hooks_may_take_the_resolved_backend(site: Site, registry: Registry) -> None:
    module = site.add_hooks(
        "seeing",
        """
        @hookimpl(wrapper=True)
        def rpc_backends_init_backend(resolved):
            CALLS.append(resolved)
            return (yield)

        @hookimpl(wrapper=True)
        def rpc_backends_agent(resolved):
            CALLS.append(resolved)
            return (yield)
        """,
    )
    backend = Backend()
    functions.init_backend("MINE")
    agent_to_install("other")
    starting, installing, nothing = calls(module)
    assert (starting.name, starting.record) == ("MINE", functions.record("MINE"))
    assert starting.backend.init_backend_handler == backend.init
    assert installing is starting
    assert nothing is None


# --- threads ---------------------------------------------------------------------------------------


def test_each_thread_gets_its_own_result(site: Site, registry: Registry) -> None:
    site.add_hooks(
        "meeting",
        """
        import threading
        barrier = threading.Barrier(4)

        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(options):
            barrier.wait(10)
            result = yield
            barrier.wait(10)
            return (result, options["number"])
        """,
    )

    functions.register_backend(
        "ECHO", lambda rpc_timeout, init_method, number: number, lambda **kwargs: None
    )
    results = at_once(
        4, lambda number: functions.construct_rpc_backend_options("ECHO", number=number)
    ).all_results()
    assert results == [(number, number) for number in range(4)]


def test_a_hook_that_fails_in_two_threads_fails_both(site: Site, registry: Registry) -> None:
    site.add_hooks(
        "broken",
        """
        import threading
        barrier = threading.Barrier(2)

        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(options):
            barrier.wait(10)
            raise OSError(options["number"])
            yield
        """,
    )
    functions.register_backend(
        "ECHO", lambda rpc_timeout, init_method, number: number, lambda **kwargs: None
    )
    workers = at_once(
        2, lambda number: functions.construct_rpc_backend_options("ECHO", number=number)
    )
    assert {number: type(error) for number, error in workers.errors.items()} == {
        0: HookError,
        1: HookError,
    }
    for number, error in workers.errors.items():
        assert f"OSError: {number}" in str(error)


SLOW = """
    import time
    time.sleep(0.05)
    CALLS.append("import")

    @hookimpl
    def rpc_backends_loaded(record): ...
"""


def test_threads_import_the_hook_packages_once(site: Site, registry: Registry) -> None:
    """The user sees one report of a broken package, and each package is imported once."""
    site.add_hooks("broken", "import time; time.sleep(0.05); raise OSError('boom')")
    module = site.add_hooks("slow", SLOW)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")  # the filter that programs have
        assert at_once(4, lambda _: agent_to_install("agent")).all_results() == ["agent"] * 4
    assert [warning.category for warning in warned] == [HookWarning]
    assert calls(module) == ["import"]


def test_an_agents_backend_is_that_of_its_thread(site: Site, registry: Registry) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    barrier = threading.Barrier(2)

    def init(**arguments: Any) -> Any:
        barrier.wait(10)
        return agent_to_install(arguments["name"])

    for name in ("A", "B"):
        functions.register_backend(name, lambda rpc_timeout, init_method: None, init)
    at_once(2, lambda number: functions.init_backend("AB"[number], name="ab"[number])).all_results()
    agents = sorted(call for call in calls(module) if call[0] == "agent")
    assert agents == [("agent", "A", "a"), ("agent", "B", "b")]


# --- notification of a load ------------------------------------------------------------------------

LISTENING = """
    @hookimpl
    def rpc_backends_loaded(record):
        CALLS.append(("loaded", record.name, record.state))

    @hookimpl
    def rpc_backends_failed(record):
        CALLS.append(("failed", record.name, type(record.error.__cause__).__name__))
"""


def test_hooks_are_notified_once_of_a_load_or_failure(site: Site, registry: Registry) -> None:
    module = site.add_hooks("listening", LISTENING)
    site.add_backend("PIGEON")
    site.add_backend("ODD", "raise OSError('boom')")
    for _ in range(2):
        registry.backend("PIGEON")
        with pytest.raises(BackendLoadError):
            registry.backend("ODD")
    assert calls(module) == [("loaded", "PIGEON", "loaded"), ("failed", "ODD", "OSError")]


def test_a_failing_listener_is_an_error_that_names_it(site: Site, registry: Registry) -> None:
    """The backend is loaded in spite of the error, and the hooks are not notified again."""
    site.add_hooks("m", "@hookimpl\ndef rpc_backends_loaded(record): raise OSError('mine')\n")
    site.add_backend("PIGEON")
    with pytest.raises(HookError, match=r"rpc_backends_loaded of the .*rpc-hooks-m 1\.0") as caught:
        registry.backend("PIGEON")
    assert isinstance(caught.value.__cause__, OSError)
    assert registry.find("PIGEON").state == "loaded"
    registry.backend("PIGEON")
    assert [package.state for package in loaded_packages()] == ["loaded"]


def test_a_listener_failing_at_a_failure_names_itself(site: Site, registry: Registry) -> None:
    site.add_hooks("m", "@hookimpl\ndef rpc_backends_failed(record): raise OSError('mine')\n")
    site.add_backend("ODD", "raise OSError('boom')")
    with pytest.raises(HookError, match=r"rpc_backends_failed of the .*rpc-hooks-m 1\.0"):
        registry.backend("ODD")
    with pytest.raises(BackendLoadError, match="boom"):
        registry.backend("ODD")
