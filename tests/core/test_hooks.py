"""Hook packages observe, wrap, replace and refuse; one that breaks is named and left out."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import Any

import pytest
from torch.distributed import rpc

from core.kit import Site, at_once, calls
from rpc_backends_core import _api as functions
from rpc_backends_core import _hooks as hooks
from rpc_backends_core._errors import BackendLoadError, RefusedError
from rpc_backends_core._hooks import HookWarning
from rpc_backends_core._registry import Registry


class Backend:
    """A backend registered in the process that counts the calls of its handlers."""

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
        return hooks.agent_to_install("agent")


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


def test_a_wrapper_sees_every_step_of_a_start_with_what_the_program_gave(
    site: Site, registry: Registry
) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    Backend()
    functions.construct_rpc_backend_options("MINE", 5, "file:///x", window=3)
    assert functions.init_backend("MINE", name="w", rank=0) == "agent"
    assert calls(module) == [
        ("construct", "MINE", 5, "file:///x", {"window": 3}),
        ("init", "MINE", (), {"name": "w", "rank": 0}),
        ("agent", "MINE", "agent"),
    ]


def test_an_agent_that_no_init_made_is_shown_without_a_backend(
    site: Site, registry: Registry
) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    Backend()
    functions.init_backend("MINE")
    assert hooks.agent_to_install("other") == "other"
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


def test_a_plain_hook_that_returns_something_takes_the_place_of_the_handler(
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
    assert hooks.agent_to_install("agent") in ("a(b(agent))", "b(a(agent))")


def test_hooks_may_be_methods_of_an_object(site: Site, registry: Registry) -> None:
    site.add_hooks("objects", "")
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
    assert hooks.agent_to_install("agent") == "theirs"


def test_hooks_are_imported_when_they_are_first_needed_and_not_before(
    site: Site, registry: Registry
) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    Backend()
    functions.records()
    assert module not in sys.modules
    functions.construct_rpc_backend_options("MINE")
    assert module in sys.modules


def test_refresh_brings_in_a_hook_package_installed_since_and_drops_one_removed(
    site: Site, registry: Registry
) -> None:
    hook = "@hookimpl\ndef rpc_backends_agent(agent): return __name__\n"
    first = site.add_hooks("first", hook)
    assert hooks.agent_to_install("agent") == first
    site.remove("rpc-hooks-first")
    second = site.add_hooks("second", hook)
    functions.refresh()
    assert hooks.agent_to_install("agent") == second


def test_a_hook_package_whose_import_asks_for_a_backend_takes_part(
    site: Site, registry: Registry
) -> None:
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
    # Loading the plugin is told to the hooks, which are imported for it, which ask for the plugin.
    registry.backend("PIGEON")
    assert hooks.agent_to_install("agent") == "theirs"
    assert [state.error for state in hooks.states()] == [None]


def test_a_hook_package_whose_import_is_the_first_to_ask_for_a_backend_takes_part(
    site: Site, registry: Registry
) -> None:
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
    assert hooks.agent_to_install("agent") == "theirs"


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
    for _ in range(2):  # it is no defect: the package stays
        with pytest.raises(RefusedError, match="MINE is not allowed here"):
            functions.init_backend("MINE")
    assert backend.initialised == []
    assert [state.error for state in hooks.states()] == [None]


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
    assert [state.error for state in hooks.states()] == [None]


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


# --- packages that break ---------------------------------------------------------------------------

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
DEFECTS = {
    "before the handler": BREAKING_BEFORE,
    "after the handler": BREAKING_AFTER,
    "in its place": """
        @hookimpl
        def rpc_backends_construct_options(backend):
            return 1 / 0
    """,
    "in a function it calls": """
        def helper():
            return 1 / 0
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            yield
            return helper()
    """,
    "in a library it calls": """
        import json
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            json.loads("{")
            return (yield)
    """,
    "no yield": """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            if False:
                yield
    """,
    "two yields": """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            yield
            return (yield)
    """,
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


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_broken_package_is_named_and_left_out_and_the_call_served_once(
    site: Site, registry: Registry, defect: str
) -> None:
    site.add_hooks("broken", DEFECTS[defect])
    healthy = site.add_hooks("healthy", WRAP_ALL)
    backend = Backend()
    with pytest.warns(HookWarning) as warned:
        assert functions.construct_rpc_backend_options("MINE", window=1) == "options"
    assert [warning.category for warning in warned] == [HookWarning], list(map(str, warned))
    assert "rpc-hooks-broken 1.0" in str(warned[0].message)
    assert "pip uninstall rpc-hooks-broken" in str(warned[0].message)
    assert backend.constructed == [(60.0, "env://", {"window": 1})]
    states = {state.found.distribution: state.error for state in hooks.states()}
    assert states["rpc-hooks-broken"] is not None
    assert states["rpc-hooks-healthy"] is None
    # From now on it is as if it were not installed.
    seen = len(calls(healthy))
    assert functions.construct_rpc_backend_options("MINE") == "options"
    assert len(calls(healthy)) == seen + 1


def test_a_defect_of_a_hook_that_is_a_method_is_its_packages(
    site: Site, registry: Registry
) -> None:
    site.add(
        "rpc-hooks-broken",
        hooks={"objects": "rpc_hooks_broken:HOOKS"},
        modules={
            "rpc_hooks_broken": """
                from rpc_backends_core import hookimpl
                class Hooks:
                    @hookimpl(wrapper=True)
                    def rpc_backends_agent(self, agent):
                        raise OSError("mine")
                        yield
                HOOKS = Hooks()
            """
        },
    )
    with pytest.warns(HookWarning, match="rpc-hooks-broken"):
        assert hooks.agent_to_install("agent") == "agent"


def test_packages_whose_hooks_are_one_librarys_code_cost_no_call_either(
    site: Site, registry: Registry
) -> None:
    site.add(
        "hook-library",
        modules={
            "hook_library": """
                from rpc_backends_core import hookimpl
                class Base:
                    @hookimpl(wrapper=True)
                    def rpc_backends_agent(self, agent):
                        raise OSError("in the library")
                        yield
            """
        },
    )
    for name in ("a", "b"):
        site.add(
            f"rpc-hooks-{name}",
            hooks={name: f"rpc_hooks_{name}:HOOKS"},
            modules={f"rpc_hooks_{name}": "import hook_library\nHOOKS = hook_library.Base()\n"},
        )
    with pytest.warns(HookWarning) as warned:
        assert hooks.agent_to_install("agent") == "agent"
    assert len(warned) == 2


def test_the_package_that_broke_is_blamed_and_not_one_that_its_exception_passed_through(
    site: Site, registry: Registry
) -> None:
    for healthy in ("a", "z"):
        site.add_hooks(healthy, WRAP_ALL)
    site.add_hooks("m", BREAKING_BEFORE)
    Backend()
    with pytest.warns(HookWarning, match="rpc-hooks-m"):
        functions.construct_rpc_backend_options("MINE")
    errors = {state.found.distribution: state.error for state in hooks.states()}
    assert [name for name, error in errors.items() if error is not None] == ["rpc-hooks-m"]


def test_several_broken_packages_are_all_left_out_in_one_call(
    site: Site, registry: Registry
) -> None:
    site.add_hooks("a", BREAKING_BEFORE)
    site.add_hooks("b", BREAKING_BEFORE)
    backend = Backend()
    with pytest.warns(HookWarning) as warned:
        assert functions.construct_rpc_backend_options("MINE") == "options"
    assert len(warned) == 2
    assert len(backend.constructed) == 1


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_defect_after_the_handler_does_not_undo_what_another_package_made_of_its_result(
    site: Site, registry: Registry, name: str
) -> None:
    site.add_hooks("m", BREAKING_AFTER)
    site.add_hooks(
        name,
        """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            return "safe " + (yield)
        """,
    )
    backend = Backend()
    with pytest.warns(HookWarning, match="rpc-hooks-m"):
        assert functions.construct_rpc_backend_options("MINE") == "safe options"
    assert len(backend.constructed) == 1


def test_a_wrapper_that_forgets_to_return_does_not_lose_the_agent(
    site: Site, registry: Registry
) -> None:
    site.add_hooks(
        "forgetful",
        """
        @hookimpl(wrapper=True)
        def rpc_backends_agent(agent):
            yield
        """,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HookWarning)
        assert hooks.agent_to_install("agent") == "agent"


def test_a_defect_in_a_call_within_a_call_is_its_packages_in_both(
    site: Site, registry: Registry
) -> None:
    # The handler of one backend makes options of another; the hook breaks in the inner call.
    site.add_hooks(
        "broken",
        """
        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(backend):
            if backend == "INNER":
                raise OSError("mine")
            result = yield
            if CALLS:
                raise OSError("never")
            return result
        """,
    )
    inner = Backend("INNER")
    functions.register_backend(
        "OUTER",
        lambda rpc_timeout, init_method: functions.construct_rpc_backend_options("INNER"),
        lambda **kwargs: None,
    )
    with pytest.warns(HookWarning) as warned:
        assert functions.construct_rpc_backend_options("OUTER") == "options"
    assert len(warned) == 1
    assert len(inner.constructed) == 1


# --- threads ---------------------------------------------------------------------------------------


def test_threads_that_call_at_once_each_get_their_own_result(
    site: Site, registry: Registry
) -> None:
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


def test_a_package_that_breaks_in_two_threads_at_once_costs_neither_its_call(
    site: Site, registry: Registry
) -> None:
    module = site.add_hooks(
        "broken",
        """
        import threading
        first_is_left_out, second_is_in = threading.Event(), threading.Event()

        @hookimpl(wrapper=True)
        def rpc_backends_construct_options(options):
            if options["number"] == 0:
                second_is_in.wait(10)
            else:
                second_is_in.set()
                first_is_left_out.wait(10)
            raise OSError("mine")
            yield
        """,
    )
    functions.register_backend(
        "ECHO", lambda rpc_timeout, init_method, number: number, lambda **kwargs: None
    )
    hooks.agent_to_install(None)  # imports the package

    def work(number: int) -> Any:
        result = functions.construct_rpc_backend_options("ECHO", number=number)
        sys.modules[module].first_is_left_out.set()
        return result

    with pytest.warns(HookWarning) as warned:
        assert at_once(2, work).all_results() == [0, 1]
    assert len(warned) == 1


def test_hook_packages_are_reported_once_when_threads_are_first_at_once(
    site: Site, registry: Registry
) -> None:
    site.add_hooks("broken", "import time; time.sleep(0.05); raise OSError('boom')")
    with pytest.warns(HookWarning) as warned:
        assert at_once(4, lambda _: hooks.agent_to_install("agent")).all_results() == ["agent"] * 4
    assert len(warned) == 1


def test_the_backend_of_an_agent_is_the_one_that_its_own_thread_initialises(
    site: Site, registry: Registry
) -> None:
    module = site.add_hooks("tracing", WRAP_ALL)
    barrier = threading.Barrier(2)

    def init(**arguments: Any) -> Any:
        barrier.wait(10)
        return hooks.agent_to_install(arguments["name"])

    for name in ("A", "B"):
        functions.register_backend(name, lambda rpc_timeout, init_method: None, init)
    at_once(2, lambda number: functions.init_backend("AB"[number], name="ab"[number])).all_results()
    agents = sorted(call for call in calls(module) if call[0] == "agent")
    assert agents == [("agent", "A", "a"), ("agent", "B", "b")]


# --- being told of a load --------------------------------------------------------------------------

LISTENING = """
    @hookimpl
    def rpc_backends_loaded(record):
        CALLS.append(("loaded", record.name, record.state))

    @hookimpl
    def rpc_backends_failed(record):
        CALLS.append(("failed", record.name, type(record.error.__cause__).__name__))
"""


def test_hooks_are_told_once_that_a_plugin_was_loaded_or_could_not_be(
    site: Site, registry: Registry
) -> None:
    module = site.add_hooks("listening", LISTENING)
    site.add_backend("PIGEON")
    site.add_backend("ODD", "raise OSError('boom')")
    for _ in range(2):
        registry.backend("PIGEON")
        with pytest.raises(BackendLoadError):
            registry.backend("ODD")
    assert calls(module) == [("loaded", "PIGEON", "loaded"), ("failed", "ODD", "OSError")]


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_listener_that_breaks_costs_neither_the_load_nor_the_others_their_news(
    site: Site, registry: Registry, name: str
) -> None:
    site.add_hooks("m", "@hookimpl\ndef rpc_backends_loaded(record): raise OSError('mine')\n")
    module = site.add_hooks(name, LISTENING)
    site.add_backend("PIGEON")
    with pytest.warns(HookWarning, match="rpc-hooks-m"):
        registry.backend("PIGEON")
    assert calls(module) == [("loaded", "PIGEON", "loaded")]
