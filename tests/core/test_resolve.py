"""`init_rpc` starts the named backend, or the one that the options belong to, or the default."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch.distributed import rpc

from core.kit import BACKEND, Site, calls
from rpc_backends_core import _api as api
from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._errors import BackendConflictError, HookError, SettingError
from rpc_backends_core._record import ResolvedBackend
from rpc_backends_core._registry import Registry
from rpc_backends_core._resolve import resolve_start
from rpc_backends_core._settings import Settings

B: Any = BackendType


def resolve(backend: Any, options: Any) -> ResolvedBackend:
    """Resolve the arguments of a start under the variables that are set now."""
    return resolve_start(backend, options, Settings.from_environment())


def selected(backend: Any, options: Any) -> Any:
    """Return the backend member that a start with these arguments uses."""
    return B[resolve(backend, options).name]


def construct(rpc_timeout: float, init_method: str, **options: Any) -> Any:
    raise AssertionError("options of this backend were constructed")


def init(store: Any, name: Any, rank: Any, world_size: Any, rpc_backend_options: Any) -> Any:
    raise AssertionError("this backend was initialised")


def options_of(site: Site, module: str) -> Any:
    """Import a plugin's module and make its options, as a program does."""
    assert site.folder.joinpath(f"{module}.py").exists()
    __import__(module)
    return sys.modules[module].Options()


def with_options(base: str) -> str:
    """Return the source of a backend whose options derive from ``base``."""
    return BACKEND.replace("class Options(rpc.RpcBackendOptions):", f"class Options({base}):")


TENSORPIPES = "rpc.TensorPipeRpcBackendOptions"

# --- a named backend, or no arguments --------------------------------------------------------------


def test_a_named_backend_wins_over_options_and_variables(
    with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.register_backend("MINE", construct, init)
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "TENSORPIPE")
    for backend in ("mine", "MINE", B.MINE):
        assert selected(backend, rpc.TensorPipeRpcBackendOptions()) is B.MINE


def test_tensorpipe_is_the_default(with_torchs: Registry) -> None:
    assert selected(None, None) is B.TENSORPIPE


@pytest.mark.parametrize("name", ["PIGEON", "pigeon", " Pigeon "])
def test_the_variable_sets_the_default_backend(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", name)
    resolved = resolve(None, None)
    assert B[resolved.name] is B.PIGEON
    assert calls(module) == [
        "construct"
    ]  # the backend's own default options; nothing is started yet
    assert type(resolved.options) is sys.modules[module].Options


def test_a_misspelt_default_is_an_error_with_a_suggestion(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "PIGOEN")
    with pytest.raises(
        SettingError, match=r"RPC_BACKENDS_DEFAULT='PIGOEN': .*Did you mean 'PIGEON'"
    ):
        selected(None, None)


def test_a_named_backend_ignores_a_misspelt_default(
    with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "PIGOEN")
    assert selected("TENSORPIPE", None) is B.TENSORPIPE


def test_a_default_in_conflict_names_both_packages(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("dist-a", backends={"PIGEON": "a:X"})
    site.add("dist-b", backends={"PIGEON": "b:X"})
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "PIGEON")
    with pytest.raises(BackendConflictError, match=r"dist-a.*dist-b"):
        selected(None, None)


# --- selected by the type of the options -----------------------------------------------------------


def test_torchs_options_load_tensorpipe_alone(site: Site, with_torchs: Registry) -> None:
    pigeon, tensorpipe = site.add_backend("PIGEON"), site.add_backend("TENSORPIPE")
    resolved = resolve(None, rpc.TensorPipeRpcBackendOptions())
    assert (resolved.name, resolved.record.source) == ("TENSORPIPE", "plugin")
    assert tensorpipe in sys.modules
    assert pigeon not in sys.modules


def test_given_options_are_passed_on(site: Site, with_torchs: Registry) -> None:
    api.register_backend("MINE", construct, init)
    given = rpc.TensorPipeRpcBackendOptions()
    for backend in (None, "TENSORPIPE", "MINE"):
        assert resolve(backend, given).options is given


def test_options_of_a_plugin_select_it_without_constructing_others(
    site: Site, with_torchs: Registry
) -> None:
    module = site.add_backend("PIGEON")
    api.register_backend("ASSERTING", construct, init)
    assert selected(None, options_of(site, module)) is B.PIGEON
    assert calls(module) == []


def test_options_of_a_plugin_import_no_other_plugin(site: Site, with_torchs: Registry) -> None:
    module = site.add_backend("PIGEON")
    others = [site.add_backend("ABOVE"), site.add_backend("ZEBRA")]
    assert selected(None, options_of(site, module)) is B.PIGEON
    assert not set(others) & set(sys.modules)


@pytest.mark.parametrize("loaded", [True, False])
def test_options_derived_from_torchs_select_their_plugin(
    site: Site, with_torchs: Registry, loaded: bool
) -> None:
    module = site.add_backend("PIGEON", with_options(TENSORPIPES))
    if loaded:
        _ = B.PIGEON.value
    assert selected(None, options_of(site, module)) is B.PIGEON


def test_a_programs_own_options_class_selects_by_its_base(
    site: Site, with_torchs: Registry
) -> None:
    site.add_backend("PIGEON", with_options(TENSORPIPES))

    class Mine(rpc.TensorPipeRpcBackendOptions):
        pass

    assert selected(None, Mine()) is B.TENSORPIPE


def test_the_nearest_options_type_wins(site: Site, with_torchs: Registry) -> None:
    far = site.add_backend("FAR")
    source = with_options(f"{far}.Options").replace(
        "from torch", f"import {far}\n    from torch", 1
    )
    near = site.add_backend("NEAR", source)
    _ = B.FAR.value, B.NEAR.value
    own = type("Own", (sys.modules[near].Options,), {})
    assert selected(None, own()) is B.NEAR
    assert selected(None, options_of(site, far)) is B.FAR


SHARED = """
    from torch.distributed import rpc
    from rpc_backends_core import Backend

    def construct(rpc_timeout, init_method): ...
    def init(store, name, rank, world_size, rpc_backend_options): ...

    class Options(rpc.RpcBackendOptions): ...

    BACKEND = Backend(construct_rpc_backend_options_handler=construct,
                      init_backend_handler=init, options_type=Options)
"""


@pytest.mark.parametrize(
    ("default", "chosen"), [(None, "First"), ("Second", "Second"), ("second", "Second")]
)
def test_the_variable_decides_between_equal_options_types(
    site: Site,
    with_torchs: Registry,
    monkeypatch: pytest.MonkeyPatch,
    default: str | None,
    chosen: str,
) -> None:
    site.add(
        "rpc-backend-shared",
        backends={"First": "shared:BACKEND", "Second": "shared:BACKEND"},
        modules={"shared": SHARED},
    )
    if default is not None:
        monkeypatch.setenv("RPC_BACKENDS_DEFAULT", default)
    assert selected(None, options_of(site, "shared")).name == chosen


def test_a_nearer_type_wins_over_the_variable(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "PIGEON")
    assert selected(None, rpc.TensorPipeRpcBackendOptions()) is B.TENSORPIPE


def add_backend_with_options_elsewhere(site: Site) -> None:
    """Install PIGEON, whose options type is in the package of another distribution."""
    elsewhere = "from torch.distributed import rpc\nclass Options(rpc.RpcBackendOptions): ..."
    site.add("options-elsewhere", modules={"elsewhere": elsewhere})
    source = BACKEND.replace("class Options(", "from elsewhere import Options\n    class Unused(")
    site.add_backend("PIGEON", source)


def test_a_foreign_options_type_is_searched_in_all_plugins(
    site: Site, with_torchs: Registry
) -> None:
    add_backend_with_options_elsewhere(site)
    assert selected(None, options_of(site, "elsewhere")) is B.PIGEON


def test_unusable_plugins_do_not_disturb_the_search(site: Site, with_torchs: Registry) -> None:
    site.add_backend("BROKEN", "raise OSError('boom')")
    site.add("dist-a", backends={"TENSORPIPE": "a:X"})
    site.add("dist-b", backends={"TENSORPIPE": "b:X"})
    add_backend_with_options_elsewhere(site)
    assert selected(None, options_of(site, "elsewhere")) is B.PIGEON


def test_torchs_options_raise_a_conflict_over_tensorpipe(site: Site, with_torchs: Registry) -> None:
    site.add("dist-a", backends={"TENSORPIPE": "a:X"})
    site.add("dist-b", backends={"TENSORPIPE": "b:X"})
    with pytest.raises(BackendConflictError, match=r"dist-a.*dist-b"):
        selected(None, rpc.TensorPipeRpcBackendOptions())


# --- old-style backends ----------------------------------------------------------------------------


class OldOptions:
    """The options of a backend that does not declare their type."""


def test_default_options_select_an_old_style_backend(with_torchs: Registry) -> None:
    api.register_backend("NEEDY", construct, init)  # its default options cannot be constructed
    api.register_backend("OLD", lambda rpc_timeout, init_method: OldOptions(), init)
    assert selected(None, OldOptions()) is B.OLD


def test_derived_options_select_their_old_style_backend(
    with_torchs: Registry,
) -> None:
    made: list[Any] = []

    def needy(rpc_timeout: float, init_method: str) -> Any:
        made.append(init_method)
        raise TypeError("an option is required")

    api.register_backend("NEEDY", needy, init)
    api.register_backend("OLD", lambda rpc_timeout, init_method: OldOptions(), init)

    class Derived(OldOptions):
        pass

    assert selected(None, Derived()) is B.OLD
    assert len(made) == 1


def test_options_made_once_are_not_constructed_again(
    with_torchs: Registry,
) -> None:
    made: list[Any] = []

    def counting(rpc_timeout: float, init_method: str, *, needed: int) -> Any:
        made.append(needed)
        return OldOptions()

    api.register_backend("OLD", counting, init)
    api.register_backend("NEEDY", construct, init)
    options = api.construct_rpc_backend_options("OLD", needed=1)
    assert selected(None, options) is B.OLD
    assert made == [1]


class DerivedOptions(rpc.TensorPipeRpcBackendOptions):
    """The options of an old-style backend that derive from torch's, as those of torch_npu do."""


def test_options_of_an_old_style_backend_outrank_their_base(with_torchs: Registry) -> None:
    """The backend that made options of exactly that class wins over the backend of a base class."""

    def construct_derived(rpc_timeout: float, init_method: str, **options: Any) -> Any:
        return DerivedOptions(rpc_timeout=rpc_timeout, init_method=init_method, **options)

    api.register_backend("OLD", construct_derived, init)
    given = DerivedOptions(num_worker_threads=3)
    resolved = resolve(None, given)
    assert resolved.name == "OLD"
    assert resolved.options is given
    assert selected(None, rpc.TensorPipeRpcBackendOptions()) is B.TENSORPIPE


def test_default_options_select_a_packages_bare_handlers(site: Site, with_torchs: Registry) -> None:
    source = BACKEND.replace(
        "BACKEND = Backend(", "BACKEND = (construct, init)\n    UNUSED = dict("
    )
    module = site.add_backend("PIGEON", source)
    assert selected(None, options_of(site, module)) is B.PIGEON


def test_a_declared_type_avoids_constructing_other_options(
    with_torchs: Registry,
) -> None:
    made: list[Any] = []

    def noting(rpc_timeout: float, init_method: str) -> Any:
        made.append(init_method)
        return OldOptions()

    api.register_backend("OLD", noting, init)
    assert selected(None, rpc.TensorPipeRpcBackendOptions()) is B.TENSORPIPE
    assert made == []


def test_options_of_no_backend_list_the_known_types(site: Site, with_torchs: Registry) -> None:
    site.add_backend("PIGEON")
    with pytest.raises(TypeError, match="Could not infer backend for options") as caught:
        selected(None, object())
    assert "TENSORPIPE: TensorPipeRpcBackendOptions" in str(caught.value)
    # PIGEON was loaded during the search, so its type is known.
    assert "PIGEON: Options" in str(caught.value)


def test_a_hook_that_fails_during_inference_is_named(site: Site, with_torchs: Registry) -> None:
    """The error names the hook and does not say that no backend fits the options."""
    site.add_hooks(
        "broken",
        """
        @hookimpl
        def rpc_backends_construct_options(backend):
            raise OSError("mine")
        """,
    )
    api.register_backend("OLD", construct, init)

    class Strange(rpc.RpcBackendOptions):
        pass

    with pytest.raises(HookError, match="rpc-hooks-broken"):
        resolve(None, Strange())
