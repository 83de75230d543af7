"""A package may have an entry point for a backend and also register it, as packages for torch do."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from core.kit import Site, at_once
from rpc_backends_core import BackendType
from rpc_backends_core import _api as functions
from rpc_backends_core._registry import Registry
from rpc_backends_core.spi import BackendLoadError

OLD_STYLE = """
    from rpc_backends_core import _api as backend_registry

    def construct(rpc_timeout, init_method, **options): ...
    def init(store, name, rank, world_size, rpc_backend_options): ...

    MEMBER = backend_registry.register_backend("CARRIER", construct, init)
"""


def add(site: Site, value: str = "torch_carrier", source: str = OLD_STYLE, **more: str) -> None:
    """Install the old-style package with an entry point for each of its backends."""
    backends = {"CARRIER": value, **more}
    site.add("torch-carrier", backends=backends, modules={"torch_carrier": source})


def is_the_modules(name: str) -> bool:
    """Return whether the backend has the handlers of the installed module."""
    module: Any = importlib.import_module("torch_carrier")
    return bool(BackendType[name].value == (module.construct, module.init))


@pytest.mark.parametrize("value", ["torch_carrier", "torch_carrier:MEMBER", "torch_carrier:init"])
def test_what_it_registers_while_it_loads_is_adopted(
    site: Site, registry: Registry, value: str
) -> None:
    add(site, value)
    assert is_the_modules("CARRIER")
    record = functions.record("CARRIER")
    assert (record.source, record.state, record.distribution) == (
        "plugin",
        "loaded",
        "torch-carrier",
    )


def test_a_program_may_import_it_first(site: Site, registry: Registry) -> None:
    add(site)
    member = importlib.import_module("torch_carrier").MEMBER
    assert member is BackendType.CARRIER
    assert functions.record("CARRIER").state == "found"
    assert is_the_modules("CARRIER")


def test_the_object_of_the_entry_point_comes_first(site: Site, registry: Registry) -> None:
    declares = """
    from rpc_backends_core import Backend
    BACKEND = Backend(construct_rpc_backend_options_handler=construct, init_backend_handler=init,
                      capabilities={"rejoin"})
    """
    add(site, "torch_carrier:BACKEND", OLD_STYLE + declares)
    importlib.import_module("torch_carrier")
    assert registry.backend("CARRIER").capabilities == {"rejoin"}


def test_it_may_register_all_its_backends_at_once(site: Site, registry: Registry) -> None:
    source = OLD_STYLE + '\n    backend_registry.register_backend("HOMING", construct, init)\n'
    add(site, source=source, HOMING="torch_carrier")
    assert is_the_modules("CARRIER")
    assert is_the_modules("HOMING")
    assert functions.record("HOMING").source == "plugin"


def test_a_helper_module_may_register_it(site: Site, registry: Registry) -> None:
    """The backend may be registered by any module that the import of the entry point imports."""
    site.add("loft", modules={"loft": OLD_STYLE})
    add(site, source="from loft import construct, init")
    registry.backend("CARRIER")
    assert is_the_modules("CARRIER")


def test_another_packages_registration_is_refused(site: Site, registry: Registry) -> None:
    add(site)
    site.add("loft", modules={"loft": OLD_STYLE})
    with pytest.raises(RuntimeError, match=r"^RPC backend CARRIER: already registered$"):
        importlib.import_module("loft")


def test_a_second_registration_is_torchs_error(site: Site, registry: Registry) -> None:
    add(site)
    module = importlib.import_module("torch_carrier")
    assert is_the_modules("CARRIER")
    with pytest.raises(RuntimeError, match=r"^RPC backend CARRIER: already registered$"):
        importlib.reload(module)


def test_handlers_that_do_not_fit_are_its_error(site: Site, registry: Registry) -> None:
    add(site, source=OLD_STYLE.replace("rpc_backend_options)", "options)"))
    with pytest.raises(BackendLoadError, match=r"torch-carrier 1\.0.*init_backend_handler has"):
        registry.backend("CARRIER")


def test_a_package_that_registers_nothing_is_no_backend(site: Site, registry: Registry) -> None:
    add(site, source="construct = init = None")
    with pytest.raises(BackendLoadError, match=r"torch-carrier 1\.0.*is not a backend"):
        registry.backend("CARRIER")


def test_threads_that_load_it_at_once_get_one_backend(site: Site, registry: Registry) -> None:
    slow = OLD_STYLE.replace("MEMBER =", "import time; time.sleep(0.05)\n    MEMBER =")
    add(site, source=slow)
    loaded = at_once(4, lambda _: registry.backend("CARRIER")).all_results()
    assert all(backend is loaded[0] for backend in loaded)
