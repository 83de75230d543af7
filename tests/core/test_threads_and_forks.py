"""The registry under many threads, with reentrant imports, and in a forked process."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from core.kit import Children, Site, Workers, at_once, calls
from rpc_backends_core import _api as api
from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._discovery import Scan
from rpc_backends_core._errors import BackendLoadError
from rpc_backends_core._process_state import STATE
from rpc_backends_core._registry import Registry

PAIR: Any = (lambda rpc_timeout, init_method: None, lambda **kwargs: None)


def test_threads_import_a_plugin_once(site: Site) -> None:
    module = site.add_backend(
        "PIGEON",
        """
        import time
        CALLS = ["import"]
        time.sleep(0.05)
        BACKEND = (lambda rpc_timeout, init_method: None, lambda **kwargs: None)
        """,
    )
    registry = Registry(scan=site.scan)
    outcomes: list[str] = []
    registry.on_loaded = lambda record: outcomes.append(record.state)
    backends = at_once(16, lambda _: registry.backend("PIGEON")).all_results()
    assert len({id(backend) for backend in backends}) == 1
    assert calls(module) == ["import"]
    assert outcomes == ["loaded"]


def test_threads_all_get_the_cause_of_a_failure(site: Site) -> None:
    site.add_backend("ODD", "import time; time.sleep(0.05); raise OSError('boom')")
    registry = Registry(scan=site.scan)
    outcomes: list[str] = []
    registry.on_loaded = lambda record: outcomes.append(record.state)
    workers = at_once(8, lambda _: registry.backend("ODD"))
    assert len(workers.errors) == 8
    for error in workers.errors.values():
        assert isinstance(error, BackendLoadError)
        assert isinstance(error.__cause__, OSError)
    assert outcomes == ["failed"]
    assert registry.find("ODD").state == "failed"


@pytest.mark.parametrize("first_to_end", ["success", "failure"])
def test_concurrent_success_and_failure_leave_a_consistent_record(
    site: Site, first_to_end: str
) -> None:
    site.add_backend("PIGEON")
    begun = threading.Barrier(2)
    ended = {"success": threading.Event(), "failure": threading.Event()}

    class EntryPoint:
        """An entry point whose loading succeeds in one thread, and fails in the other."""

        def load(self) -> Any:
            how = threading.current_thread().name
            begun.wait(5)
            if how != first_to_end:
                ended[first_to_end].wait(5)
            if how == "failure":
                raise OSError("a shared object that another process is still writing")
            return PAIR

    (backend,) = site.scan().backends
    scan = Scan([replace(backend, entry_point=EntryPoint())], [])
    registry = Registry(scan=lambda: scan)

    def load(how: str) -> None:
        threading.current_thread().name = how
        try:
            registry.load("PIGEON")
        finally:
            ended[how].set()

    workers = Workers()
    for how in ended:
        workers.start(how, lambda how=how: load(how))  # type: ignore[misc]
    workers.join()
    kept = registry.find("PIGEON")
    assert (kept.state, kept.error) == ("loaded", None)
    assert registry.backend("PIGEON").value == PAIR


def test_only_one_thread_registers_a_name(registry: Registry) -> None:
    workers = at_once(16, lambda _: api.register_backend("MINE", *PAIR))
    assert len(workers.results) == 1
    assert {str(error) for error in workers.errors.values()} == {
        "RPC backend MINE: already registered"
    }


def test_threads_get_one_member_object(registry: Registry) -> None:
    name = "MADE_AT_ONCE"
    registry.register(name, PAIR, owner="program")
    assert name not in BackendType._member_map_
    members = at_once(16, lambda _: BackendType[name]).all_results()
    assert len({id(member) for member in members}) == 1


def test_threads_share_one_default_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STATE, "registry", None)
    prepared: list[Registry] = []
    monkeypatch.setattr(STATE, "preparations", [prepared.append])
    registries = at_once(16, lambda _: default_registry()).all_results()
    assert len({id(registry) for registry in registries}) == 1
    assert registries[0] in prepared


def test_concurrent_use_of_the_registry_never_fails(site: Site) -> None:
    for number in range(4):
        site.add_backend(f"PLUGIN{number}")
    registry = Registry(scan=site.scan)

    def work(number: int) -> None:
        for turn in range(10):
            name = f"MINE_{number}_{turn}"
            registry.register(name, PAIR, owner="program")
            assert registry.backend(name).value == PAIR
            assert name in registry.names()
            registry.backend(f"plugin{turn % 4}")
            if turn % 3 == 0:
                registry.refresh()
            registry.records()
            registry.unregister(name)

    at_once(8, work).all_results()
    assert registry.names() == ["PLUGIN0", "PLUGIN1", "PLUGIN2", "PLUGIN3"]


def test_a_plugin_may_use_the_registry_at_import(site: Site, registry: Registry) -> None:
    site.add_backend("OTHER")
    site.add_backend(
        "PIGEON",
        """
        from rpc_backends_core import BackendType, records, register_backend
        other = BackendType.OTHER.value
        register_backend("PIGEONS_OWN", *other)
        seen = [record.name for record in records()], list(BackendType)
        BACKEND = tuple(other)
        """,
    )
    workers = Workers()
    workers.start("load", lambda: registry.backend("PIGEON"))
    (backend,) = workers.all_results()
    assert backend.value == registry.backend("OTHER").value


def test_a_plugins_thread_may_use_the_registry_at_import(site: Site, registry: Registry) -> None:
    site.add_backend("OTHER")
    site.add_backend(
        "PIGEON",
        """
        import threading
        from rpc_backends_core import BackendType
        found = []
        def ask():
            found.append(BackendType.OTHER.value)
            found.append(list(BackendType))
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(5)
        assert len(found) == 2, "the other thread waits for us, and we for it"
        BACKEND = tuple(found[0])
        """,
    )
    workers = Workers()
    workers.start("load", lambda: registry.backend("PIGEON"))
    (backend,) = workers.all_results()
    assert backend.value == registry.backend("OTHER").value


def test_a_plugin_that_loads_itself_fails_without_hanging(site: Site, registry: Registry) -> None:
    site.add_backend("ODD", "from rpc_backends_core import BackendType\nBackendType.ODD.value\n")
    workers = Workers()
    workers.start("load", lambda: registry.backend("ODD"))
    workers.join()
    assert isinstance(workers.errors["load"], BackendLoadError)


# --- fork ------------------------------------------------------------------------------------------

HOLD_AND_FORK = """
    import os, threading
    from rpc_backends_core import _patches as patches
    patches.install()
    from rpc_backends_core import BackendType
    from rpc_backends_core import _hooks as hooks
    from rpc_backends_core._default_registry import default_registry

    BackendType.PIGEON.value
    held, done = threading.Event(), threading.Event()

    def hold():
        with LOCK:
            held.set()
            done.wait()

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        import signal
        signal.alarm(60)  # ends a child that hangs
        WORK
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    done.set()
    print(os.waitstatus_to_exitcode(status))
"""


def hold_and_fork(lock: str, work: str) -> str:
    return HOLD_AND_FORK.replace("LOCK", lock).replace("WORK", work)


def test_the_registry_works_after_a_fork_under_lock(site: Site, children: Children) -> None:
    site.add_backend("PIGEON")
    code = hold_and_fork(
        "default_registry()._lock",
        "assert [m.name for m in BackendType] == ['TENSORPIPE', 'PIGEON']; BackendType.PIGEON.value",
    )
    assert children.run(code, site=site) == "0"


def test_loaded_and_registered_backends_survive_a_fork(site: Site, children: Children) -> None:
    module = site.add_backend("PIGEON")
    output = children.run(
        f"""
        import os, sys
        from rpc_backends_core import BackendType, records, register_backend
        register_backend("MINE", print, print)
        member = BackendType.PIGEON
        member.value
        if (pid := os.fork()) == 0:
            assert BackendType.PIGEON is member
            assert {module!r} in sys.modules
            print([(record.name, record.state) for record in records()], flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        """,
        site=site,
    )
    assert output == "[('MINE', 'registered'), ('PIGEON', 'loaded')]"
