"""Loading each plugin in a separate process, so that a hang or crash does not stop the others."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rpc_backends_cli.installed import remedy, unloadable
from rpc_backends_cli.output import Failure, origin
from rpc_backends_cli.report import Finding, Section, limit_note, seconds
from rpc_backends_processes import WorkerContext, isolation

if TYPE_CHECKING:
    from rpc_backends_core.spi import Record

Item = tuple[str, str]  # ("backend", "replacement" or "hook", name)


@dataclass(frozen=True)
class Loaded:
    """The result of loading one package.

    :ivar failure: why it failed; None if it did not.
    :ivar complete: whether ``failure`` is the registry's message, which includes the package and the
        remedy.
    """

    seconds: float | None
    failure: str | None
    complete: bool = True


def require_loadable(names: Sequence[str], limit: float) -> None:
    """Check that backends, and all hook packages, neither hang nor crash while they are imported.

    Each is imported in a separate process. Other errors do not count: the caller gets them when it
    imports the package itself.

    :param names: backends, each of them known.
    :param limit: time limit in seconds for one package.
    :raises Failure: a package hangs or crashes; the text names it.
    """
    from rpc_backends_core.spi.inspection import default_registry, record

    hooks = {hook_id(package): package for package in default_registry().hook_packages()}
    items = [*(("hook", name) for name in hooks), *(("backend", name) for name in names)]
    for (kind, name), loaded in load_all(items, limit).items():
        if loaded.failure is None or loaded.complete:
            continue
        if kind == "backend":
            raise Failure(unloadable(record(name), loaded.failure))
        package = hooks[name]
        raise Failure(
            f"Hook package {package.origin} cannot be used: loading {package.value}: {loaded.failure}\n"
            f"{remedy(package)}"
        )


def load_all(items: Iterable[Item], limit: float) -> dict[Item, Loaded]:
    """Load each of ``items``; ``limit`` is in seconds for one item."""
    left, results = list(items), dict[Item, Loaded]()
    while left:
        (outcome,) = isolation.run(_load, [(left,)], limit, each=True)
        results.update(outcome.reported)
        left = [item for item in left if item not in results]
        if left:
            # Loading the first item ended the process; try the rest in a new process.
            failure = outcome.error or "the process ended without a result"
            failure += limit_note(limit, timed_out=outcome.timed_out)
            results[left.pop(0)] = Loaded(None, failure, complete=False)
    return results


def _load(me: WorkerContext, items: Sequence[Item]) -> None:
    """Load ``items`` one after the other and report each result."""
    me.doing("importing torch")
    import torch  # noqa: F401  # as in every program, and not to be counted as the first plugin's time

    from rpc_backends_core.spi.inspection import default_registry

    default_registry().on_loaded = None  # hook packages are tested separately
    for kind, name in items:
        me.doing(f"loading {name}")
        started = time.perf_counter()
        failure = _LOAD[kind](name)
        me.tell(((kind, name), Loaded(time.perf_counter() - started, failure)))


def _load_backend(name: str) -> str | None:
    """Return why a backend cannot be loaded, or construct its default options; None if it can."""
    from rpc_backends_cli.options import required_options
    from rpc_backends_core.spi import RpcBackendsError
    from rpc_backends_core.spi.inspection import check_default_options, default_registry

    try:
        backend = default_registry().backend(name)
        if required_options(backend):
            return None
        check_default_options(name)
    except RpcBackendsError as error:
        return str(error)
    except Exception as error:  # raised by the backend's handler
        return "\n".join(
            [
                f"constructing its default options failed with {type(error).__name__}: {error}",
                *getattr(error, "__notes__", ()),
            ]
        )
    return None


def _load_hooks(name: str) -> str | None:
    """Return why the hook package that :func:`hook_id` calls ``name`` cannot be loaded, or None."""
    from rpc_backends_core.spi.inspection import Hooks, default_registry

    packages = [
        package for package in default_registry().hook_packages() if hook_id(package) == name
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the record has the same message
        errors = [record.error for record in Hooks(packages).records if record.error is not None]
    return f"{type(errors[0]).__name__}: {errors[0]}" if errors else None


def _load_replacement(_name: str) -> str | None:
    """Return why no backend can take the place of one that torch does not have; None if one can."""
    from rpc_backends_core.spi import RpcBackendsError
    from rpc_backends_core.spi.inspection import check_replacement

    try:
        check_replacement()
    except RpcBackendsError as error:
        return str(error)
    return None


_LOAD = {"backend": _load_backend, "replacement": _load_replacement, "hook": _load_hooks}


def call_hooks(record: Record, limit: float) -> Loaded:
    """Call the hooks of one package: start and stop a group of one worker on the default backend.

    :returns: ``failure`` is the error of the first hook that failed, and ``complete`` is true; or, with
        ``complete`` false, the reason why the hooks could not be called.
    """
    (outcome,) = isolation.run(_call_hooks, [(hook_id(record),)], limit)
    if outcome.error is None:
        return Loaded(None, outcome.result)
    failure = (
        f"while {outcome.stage}: {outcome.error}{limit_note(limit, timed_out=outcome.timed_out)}"
    )
    return Loaded(None, failure, complete=False)


def _call_hooks(me: WorkerContext, name: str) -> str | None:
    """Return the error of the first hook that fails; None if none does.

    A hook that forbids something (``RefusedError``) has not failed.
    """
    me.doing("importing torch")
    from torch.distributed import rpc

    import rpc_backends_core
    from rpc_backends_core.spi import BackendLoadError, HookError, RefusedError, current_session
    from rpc_backends_core.spi.inspection import Hooks, default_registry, settings, use_hooks

    rpc_backends_core.install()
    os.environ.pop(settings.OVERRIDE, None)
    hooks = Hooks(
        [package for package in default_registry().hook_packages() if hook_id(package) == name]
    )
    use_hooks(hooks)
    me.doing("calling its hooks")
    try:
        default_registry().on_loaded = None  # called below, once each
        with tempfile.TemporaryDirectory(prefix="rpc-backends-") as folder:
            options = rpc_backends_core.construct_rpc_backend_options(
                "TENSORPIPE", init_method=f"file://{Path(folder, 'store')}"
            )
            rpc.init_rpc("doctor", "TENSORPIPE", 0, 1, options)
            session = current_session()
            assert session is not None, "RPC has just been started"
            record = session.resolved.record  # of another backend if torch has no TensorPipe
            rpc.shutdown()
        hooks.callers.rpc_backends_loaded(record=record)
        failed = replace(record, state="failed", error=BackendLoadError("not a failure: a test"))
        hooks.callers.rpc_backends_failed(record=failed)
    except RefusedError:
        return None
    except HookError as error:
        return str(error)
    me.doing("ending the process")
    return None


def hook_id(record: Record) -> str:
    """Return a unique id of a hook package; several packages may use the same name."""
    return f"{record.name} of {record.origin}"


def check(records: list[Record], found_hooks: list[Record], limit: float) -> list[Section]:
    """Return the loading result of every backend and hook package."""
    tried = [record for record in records if record.state == "found"]
    items = [("backend", record.name) for record in tried]
    # On a torch without TensorPipe, programs for it start another backend.
    replaced = {
        record.name: ("replacement", record.name)
        for record in records
        if record.state == "unavailable" and record.name == "TENSORPIPE"
    }
    items += replaced.values()
    items += dict.fromkeys(("hook", hook_id(package)) for package in found_hooks)
    results = load_all(items, limit)
    backends = [
        _backend(record, results.get(replaced.get(record.name, ("backend", record.name))))
        for record in records
    ]
    # Packages that claim the same name share one error.
    backends = list({(backend.about, backend.text): backend for backend in backends}.values())
    hooks = []
    for package in found_hooks:
        loaded = results["hook", hook_id(package)]
        called = call_hooks(package, limit) if loaded.failure is None else None
        hooks.append(_hook(package, loaded, called))
    sections = [Section("backends", "Backends (with loading times)", backends)]
    return [*sections, Section("hooks", "Hook packages", hooks)] if hooks else sections


def _backend(record: Record, loaded: Loaded | None) -> Finding:
    where = origin(record)
    data: dict[str, object] = {
        "state": record.state,
        "source": record.source,
        "distribution": record.distribution,
        "version": record.version,
        "value": record.value,
        "error": None if record.error is None else str(record.error),
    }
    if record.state == "shadowed":
        return Finding("note", record.name, f"{where}, not used: it is shadowed", data)
    if record.state == "unavailable" and loaded is not None and loaded.failure is not None:
        data["error"] = loaded.failure
        return Finding("problem", record.name, loaded.failure, data)
    if record.error is not None:
        level = "note" if record.state in ("denied", "unavailable") else "problem"
        return Finding(level, record.name, str(record.error), data)  # type: ignore[arg-type]
    if record.state != "found" or loaded is None:
        return Finding("ok", record.name, where, data)
    data |= {
        "state": "failed" if loaded.failure else "loaded",
        "error": loaded.failure,
        "load_seconds": loaded.seconds,
    }
    if loaded.failure is None:
        return Finding("ok", record.name, f"{where} ({seconds(loaded.seconds or 0)})", data)
    text = loaded.failure
    if not loaded.complete:
        text = data["error"] = unloadable(record, text)
    return Finding("problem", record.name, text, data)


def _hook(record: Record, loaded: Loaded, called: Loaded | None) -> Finding:
    """Return the finding for a hook package; ``called`` is None if it could not be loaded."""
    data = {
        "distribution": record.distribution,
        "version": record.version,
        "value": record.value,
        "error": loaded.failure,
        "load_seconds": loaded.seconds,
    }
    if called is not None and called.failure is not None:
        data["error"] = called.failure
        if called.complete:
            return Finding("problem", record.name, called.failure, data)
        text = f"{record.origin} is in use, but its hooks could not be tried {called.failure}"
        return Finding("warning", record.name, text, data)
    if loaded.failure is None:
        return Finding("ok", record.name, f"{record.origin}, in use", data)
    return Finding(
        "problem",
        record.name,
        f"{record.origin} is skipped: loading {record.value}: {loaded.failure}\nFix it, or uninstall "
        f"it: pip uninstall {record.distribution}.",
        data,
    )
