"""Only the requested backend is loaded, once. A failure is recorded and raised at each request."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch.distributed.rpc import RpcBackendOptions

from core.kit import Site
from rpc_backends_core._errors import BackendLoadError
from rpc_backends_core._registry import Registry


def load_error(
    site: Site, source: str, value: str = "sample_backend_odd:BACKEND"
) -> BackendLoadError:
    """Install a backend with this source; return the error raised when the backend is requested."""
    modules = {"sample_backend_odd": source}
    site.add("rpc-backend-odd", "1.2", backends={"ODD": value}, modules=modules)
    with pytest.raises(BackendLoadError) as caught:
        Registry(scan=site.scan).backend("ODD")
    return caught.value


def test_only_the_requested_backend_is_imported(site: Site) -> None:
    wanted, unwanted = site.add_backend("WANTED"), site.add_backend("OTHER")
    registry = Registry(scan=site.scan)
    registry.backend("wanted")
    assert wanted in sys.modules
    assert unwanted not in sys.modules
    assert [record.state for record in registry.records()] == ["found", "loaded"]


def test_a_loaded_backend_stays_the_same_object(site: Site) -> None:
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    assert registry.backend("PIGEON") is registry.backend("PIGEON")


@pytest.mark.parametrize(
    ("source", "value", "cause"),
    [
        ("import no_such_module", "sample_backend_odd:BACKEND", ModuleNotFoundError),
        ("raise RuntimeError('boom')", "sample_backend_odd:BACKEND", RuntimeError),
        ("def broken(:", "sample_backend_odd:BACKEND", SyntaxError),
        ("import sys; sys.exit(3)", "sample_backend_odd:BACKEND", SystemExit),
        ("", "sample_backend_odd:BACKEND", AttributeError),
        ("BACKEND = 7", "sample_backend_odd:BACKEND", TypeError),
        ("BACKEND = None", "sample_backend_odd:BACKEND", TypeError),
        ("BACKEND = (print,)", "sample_backend_odd:BACKEND", TypeError),
        ("BACKEND = (print, 'no')", "sample_backend_odd:BACKEND", TypeError),
        ("", "no_such_module:BACKEND", ModuleNotFoundError),
        ("", "not a reference!", Exception),
        ("", "", Exception),
    ],
)
def test_an_unloadable_plugin_names_its_package_and_cause(
    site: Site, source: str, value: str, cause: type[BaseException]
) -> None:
    error = load_error(site, source, value)
    assert isinstance(error.__cause__, cause)
    for part in ("'ODD'", "rpc-backend-odd 1.2", value, type(error.__cause__).__name__):
        assert part in str(error)
    assert "pip install --force-reinstall rpc-backend-odd" in str(error)


HANDLERS = """
    def construct(rpc_timeout, init_method, **options): ...
    def init(store, name, rank, world_size, rpc_backend_options): ...
"""


@pytest.mark.parametrize(
    "change",
    [
        "def construct(rpc_timeout): ...",
        "def construct(): ...",
        "def construct(*, rpc_timeout, init_method): ...",
        "def init(store, name, rank, world_size): ...",
        "def init(store, name, rank, world_size, rpc_backend_options, extra): ...",
        "def init(store, name, rank, world_size, options): ...",
        "def init(*args): ...",
        "def init(store, name, rank, world_size, rpc_backend_options, /): ...",
    ],
)
def test_a_handler_torch_cannot_call_is_refused(site: Site, change: str) -> None:
    error = load_error(site, f"{HANDLERS}\n    {change}\n    BACKEND = (construct, init)")
    wrong = "construct_rpc_backend_options_handler" if "construct" in change else "init_backend"
    assert isinstance(error.__cause__, TypeError)
    assert wrong in str(error)
    assert "torch calls it as (" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        "def construct(rpc_timeout, init_method): ...",
        "def construct(rpc_timeout, init_method, needed, *, also_needed): ...",
        "def construct(*args, **kwargs): ...",
        "def init(**kwargs): ...",
        "def init(store, name, rank, world_size, rpc_backend_options, extra=None): ...",
        "init = type('Init', (), {'__init__': lambda self, **kwargs: None})",
        "import functools; init = functools.partial(lambda verbose, **kwargs: None, False)",
        "construct = dict",
    ],
)
def test_a_handler_torch_can_call_is_accepted(site: Site, change: str) -> None:
    source = f"{HANDLERS}\n    {change}\n    BACKEND = (construct, init)"
    site.add_backend("PIGEON", source)
    Registry(scan=site.scan).backend("PIGEON")


def test_a_bare_pair_is_a_backend(site: Site) -> None:
    module = site.add_backend("PIGEON", f"{HANDLERS}\n    BACKEND = (construct, init)")
    backend = Registry(scan=site.scan).backend("PIGEON")
    assert backend.value == sys.modules[module].BACKEND
    assert (backend.options_type, backend.capabilities) == (None, frozenset())


def test_an_object_with_both_handlers_is_a_backend(site: Site) -> None:
    source = f"""{HANDLERS}
    class BACKEND:
        construct_rpc_backend_options_handler = staticmethod(construct)
        init_backend_handler = staticmethod(init)
        from torch.distributed.rpc import RpcBackendOptions as options_type
        description = "by duck"
    """
    site.add_backend("PIGEON", source)
    backend = Registry(scan=site.scan).backend("PIGEON")
    assert (backend.options_type, backend.description) == (RpcBackendOptions, "by duck")


#: An invalid declaration, and what its error says.
INVALID = {
    "options_type=dict": ("<class 'dict'>", "subclass of torch.distributed.rpc.RpcBackendOptions"),
    "options_type='Options'": ("'Options'", "subclass of torch.distributed.rpc.RpcBackendOptions"),
    "capabilities=None": ("capabilities is None", "a set of strings"),
    "capabilities='rejoin'": ("capabilities is 'rejoin'", "a set of strings"),
    "capabilities=[1]": ("capabilities has 1", "a set of strings"),
    "capabilities={'dynamic-group'}": ("'dynamic-group'", "did you mean 'dynamic-groups'?"),
    "capabilities={'STATIC_GROUPS'}": ("'STATIC_GROUPS'", "did you mean 'static-groups'?"),
    "description=None": ("description is None", "must be a string"),
}


@pytest.mark.parametrize("declaration", INVALID)
def test_an_invalid_declaration_is_refused(site: Site, declaration: str) -> None:
    source = f"""{HANDLERS}
    from rpc_backends_core import Backend
    BACKEND = Backend(construct_rpc_backend_options_handler=construct,
                      init_backend_handler=init, {declaration})
    """
    error = str(load_error(site, source))
    for part in ("rpc-backend-odd 1.2", *INVALID[declaration]):
        assert part in error


def test_a_backend_may_have_capabilities_of_its_own(site: Site) -> None:
    source = f"""{HANDLERS}
    from rpc_backends_core import Backend
    BACKEND = Backend(construct_rpc_backend_options_handler=construct,
                      init_backend_handler=init, capabilities=["rejoin", "by-air"])
    """
    site.add_backend("PIGEON", source)
    assert Registry(scan=site.scan).backend("PIGEON").capabilities == {"rejoin", "by-air"}


def test_a_class_whose_handlers_need_an_instance_is_refused(site: Site) -> None:
    source = """
    class BACKEND:
        def construct_rpc_backend_options_handler(self, rpc_timeout, init_method): ...
        def init_backend_handler(self, store, name, rank, world_size, rpc_backend_options): ...
    """
    error = load_error(site, source)
    assert "self" in str(error)


def test_a_failure_is_kept_on_the_record(site: Site) -> None:
    site.add_backend("ODD", "raise RuntimeError('boom')")
    registry = Registry(scan=site.scan)
    with pytest.raises(BackendLoadError):
        registry.backend("ODD")
    record = registry.find("ODD")
    assert record.state == "failed"
    assert isinstance(record.error, BackendLoadError)
    assert str(record.error.__cause__) == "boom"


def test_a_failed_plugin_is_imported_only_once(site: Site) -> None:
    site.add_backend("ODD", "import builtins; builtins.tries.append(1); raise OSError('boom')")
    import builtins

    builtins.tries = []  # type: ignore[attr-defined]
    registry = Registry(scan=site.scan)
    errors: list[Any] = []
    for _ in range(3):
        with pytest.raises(BackendLoadError) as caught:
            registry.backend("ODD")
        errors.append(caught.value)
    assert builtins.tries == [1]  # type: ignore[attr-defined]
    del builtins.tries  # type: ignore[attr-defined]
    assert len({id(error) for error in errors}) == 3
    assert len({(str(error), error.__cause__) for error in errors}) == 1


def test_repeated_failures_do_not_grow_the_traceback(site: Site) -> None:
    site.add_backend("ODD", "raise OSError('boom')")
    registry = Registry(scan=site.scan)
    lengths = []
    for _ in range(3):
        with pytest.raises(BackendLoadError) as caught:
            registry.backend("ODD")
        lengths.append(len(caught.traceback))
    assert lengths[1] == lengths[2]


def test_a_failed_plugin_leaves_others_usable(site: Site) -> None:
    site.add_backend("ODD", "raise OSError('boom')")
    site.add_backend("PIGEON")
    registry = Registry(scan=site.scan)
    with pytest.raises(BackendLoadError):
        registry.backend("ODD")
    registry.backend("PIGEON")
    assert registry.names() == ["ODD", "PIGEON"]


def test_a_failed_tensorpipe_plugin_says_how_to_use_torchs(site: Site) -> None:
    site.add_backend("TENSORPIPE", "raise OSError('boom')")
    registry = Registry(scan=site.scan)
    registry.register("TENSORPIPE", (print, print), owner="torch", torch_own=True)
    with pytest.raises(BackendLoadError, match="RPC_BACKENDS_DENY=TENSORPIPE to use torch's own"):
        registry.backend("TENSORPIPE")


def test_a_failure_whose_str_raises_is_recorded(site: Site) -> None:
    source = """
    class Mute(Exception):
        def __str__(self):
            raise ValueError("no text")
    raise Mute
    """
    assert "Mute" in str(load_error(site, source))


def test_an_interrupt_is_not_a_failure_of_the_plugin(site: Site) -> None:
    source = """
    import builtins
    if not hasattr(builtins, "interrupted_once"):
        builtins.interrupted_once = True
        raise KeyboardInterrupt
    BACKEND = (lambda rpc_timeout, init_method: None, lambda **kwargs: None)
    """
    site.add_backend("PIGEON", source)
    registry = Registry(scan=site.scan)
    with pytest.raises(KeyboardInterrupt):
        registry.backend("PIGEON")
    registry.backend("PIGEON")
