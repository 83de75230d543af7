"""Which backend `init_rpc` takes: the one named, the one of the options' type, or the default."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch.distributed import rpc

from core.kit import BACKEND, Site, calls
from rpc_backends_core import _api as functions
from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._errors import BackendConflictError, HookError, SettingError
from rpc_backends_core._record import ResolvedBackend
from rpc_backends_core._registry import Registry
from rpc_backends_core._resolve import resolve_start
from rpc_backends_core._settings import Settings

B: Any = BackendType


def resolve(backend: Any, options: Any) -> ResolvedBackend:
    """Return what a start with these arguments means, with the variables as they are set."""
    return resolve_start(backend, options, Settings.from_environment())


def choose(backend: Any, options: Any) -> Any:
    """Return the member of the backend that a start with these arguments uses."""
    return B[resolve(backend, options).name]


def construct(rpc_timeout: float, init_method: str, **options: Any) -> Any:
    raise AssertionError("options of this backend were constructed")


def init(store: Any, name: Any, rank: Any, world_size: Any, rpc_backend_options: Any) -> Any:
    raise AssertionError("this backend was initialised")


def options_of(site: Site, module: str) -> Any:
    """Import a plugin's module, as a program does that makes its options, and make them."""
    assert site.folder.joinpath(f"{module}.py").exists()
    __import__(module)
    return sys.modules[module].Options()


def with_options(base: str) -> str:
    """Return the source of a backend whose options derive from ``base``."""
    return BACKEND.replace("class Options(rpc.RpcBackendOptions):", f"class Options({base}):")


TENSORPIPES = "rpc.TensorPipeRpcBackendOptions"

# --- named, or nothing at all ----------------------------------------------------------------------


def test_a_backend_that_is_named_is_taken_whatever_the_options_and_variables(
    with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions.register_backend("MINE", construct, init)
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "TENSORPIPE")
    for backend in ("mine", "MINE", B.MINE):
        assert choose(backend, rpc.TensorPipeRpcBackendOptions()) is B.MINE


def test_without_name_options_and_variable_it_is_tensorpipe(with_torchs: Registry) -> None:
    assert choose(None, None) is B.TENSORPIPE


@pytest.mark.parametrize("name", ["PIGEON", "pigeon", " Pigeon "])
def test_the_variable_decides_for_a_program_that_names_none(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", name)
    resolved = resolve(None, None)
    assert B[resolved.name] is B.PIGEON
    assert calls(module) == ["construct"]  # its own options, and nothing is started yet
    assert type(resolved.options) is sys.modules[module].Options


def test_a_typo_in_the_variable_is_an_error_with_the_nearest_name(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "PIGOEN")
    with pytest.raises(
        SettingError, match=r"RPC_BACKENDS_DEFAULT='PIGOEN': .*Did you mean 'PIGEON'"
    ):
        choose(None, None)


def test_a_typo_in_the_variable_is_no_matter_for_a_program_that_names_its_backend(
    with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "PIGOEN")
    assert choose("TENSORPIPE", None) is B.TENSORPIPE


def test_a_default_that_two_packages_claim_names_both(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("dist-a", backends={"PIGEON": "a:X"})
    site.add("dist-b", backends={"PIGEON": "b:X"})
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "PIGEON")
    with pytest.raises(BackendConflictError, match=r"dist-a.*dist-b"):
        choose(None, None)


# --- by the type of the options --------------------------------------------------------------------


def test_torchs_options_load_tensorpipe_alone(site: Site, with_torchs: Registry) -> None:
    other, own = site.add_backend("PIGEON"), site.add_backend("TENSORPIPE")
    resolved = resolve(None, rpc.TensorPipeRpcBackendOptions())
    assert (resolved.name, resolved.record.source) == ("TENSORPIPE", "plugin")
    assert own in sys.modules
    assert other not in sys.modules


def test_options_that_are_given_are_passed_on(site: Site, with_torchs: Registry) -> None:
    functions.register_backend("MINE", construct, init)
    given = rpc.TensorPipeRpcBackendOptions()
    for backend in (None, "TENSORPIPE", "MINE"):
        assert resolve(backend, given).options is given


def test_the_options_of_a_plugin_find_it_and_construct_nothing_of_any_other(
    site: Site, with_torchs: Registry
) -> None:
    module = site.add_backend("PIGEON")
    functions.register_backend("ASSERTING", construct, init)
    assert choose(None, options_of(site, module)) is B.PIGEON
    assert calls(module) == []


def test_the_options_of_a_plugin_import_no_other_plugin(site: Site, with_torchs: Registry) -> None:
    module = site.add_backend("PIGEON")
    others = [site.add_backend("ABOVE"), site.add_backend("ZEBRA")]
    assert choose(None, options_of(site, module)) is B.PIGEON
    assert not set(others) & set(sys.modules)


@pytest.mark.parametrize("loaded", [True, False])
def test_options_that_derive_from_torchs_find_the_plugin_they_are_of(
    site: Site, with_torchs: Registry, loaded: bool
) -> None:
    module = site.add_backend("PIGEON", with_options(TENSORPIPES))
    if loaded:
        _ = B.PIGEON.value
    assert choose(None, options_of(site, module)) is B.PIGEON


def test_a_programs_own_class_of_options_finds_the_backend_of_its_base(
    site: Site, with_torchs: Registry
) -> None:
    site.add_backend("PIGEON", with_options(TENSORPIPES))

    class Mine(rpc.TensorPipeRpcBackendOptions):
        pass

    assert choose(None, Mine()) is B.TENSORPIPE


def test_of_several_types_that_fit_the_nearest_decides(site: Site, with_torchs: Registry) -> None:
    far = site.add_backend("FAR")
    source = with_options(f"{far}.Options").replace(
        "from torch", f"import {far}\n    from torch", 1
    )
    near = site.add_backend("NEAR", source)
    _ = B.FAR.value, B.NEAR.value
    own = type("Own", (sys.modules[near].Options,), {})
    assert choose(None, own()) is B.NEAR
    assert choose(None, options_of(site, far)) is B.FAR


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
def test_of_backends_that_share_a_type_the_variable_decides_and_then_the_order(
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
    assert choose(None, options_of(site, "shared")).name == chosen


def test_the_variable_does_not_outweigh_a_better_type(
    site: Site, with_torchs: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "PIGEON")
    assert choose(None, rpc.TensorPipeRpcBackendOptions()) is B.TENSORPIPE


def add_backend_with_options_elsewhere(site: Site) -> None:
    """Install PIGEON, whose options type is in the package of another distribution."""
    elsewhere = "from torch.distributed import rpc\nclass Options(rpc.RpcBackendOptions): ..."
    site.add("options-elsewhere", modules={"elsewhere": elsewhere})
    source = BACKEND.replace("class Options(", "from elsewhere import Options\n    class Unused(")
    site.add_backend("PIGEON", source)


def test_a_type_that_no_plugins_package_has_is_looked_for_in_all_of_them(
    site: Site, with_torchs: Registry
) -> None:
    add_backend_with_options_elsewhere(site)
    assert choose(None, options_of(site, "elsewhere")) is B.PIGEON


def test_plugins_that_cannot_be_used_are_in_nobodys_way(site: Site, with_torchs: Registry) -> None:
    site.add_backend("BROKEN", "raise OSError('boom')")
    site.add("dist-a", backends={"TENSORPIPE": "a:X"})
    site.add("dist-b", backends={"TENSORPIPE": "b:X"})
    add_backend_with_options_elsewhere(site)
    assert choose(None, options_of(site, "elsewhere")) is B.PIGEON


def test_torchs_options_are_told_of_a_conflict_over_tensorpipe(
    site: Site, with_torchs: Registry
) -> None:
    site.add("dist-a", backends={"TENSORPIPE": "a:X"})
    site.add("dist-b", backends={"TENSORPIPE": "b:X"})
    with pytest.raises(BackendConflictError, match=r"dist-a.*dist-b"):
        choose(None, rpc.TensorPipeRpcBackendOptions())


# --- old-style backends ----------------------------------------------------------------------------


class OldOptions:
    """The options of a backend that says nowhere of what type they are."""


def test_an_old_style_backend_is_found_by_its_default_options(with_torchs: Registry) -> None:
    functions.register_backend("NEEDY", construct, init)  # its default options cannot be made
    functions.register_backend("OLD", lambda rpc_timeout, init_method: OldOptions(), init)
    assert choose(None, OldOptions()) is B.OLD


def test_options_that_derive_from_those_of_an_old_style_backend_find_it(
    with_torchs: Registry,
) -> None:
    made: list[Any] = []

    def needy(rpc_timeout: float, init_method: str) -> Any:
        made.append(init_method)
        raise TypeError("an option is required")

    functions.register_backend("NEEDY", needy, init)
    functions.register_backend("OLD", lambda rpc_timeout, init_method: OldOptions(), init)

    class Derived(OldOptions):
        pass

    assert choose(None, Derived()) is B.OLD
    assert len(made) == 1


def test_an_old_style_backend_whose_options_the_program_has_made_is_not_asked_again(
    with_torchs: Registry,
) -> None:
    made: list[Any] = []

    def counting(rpc_timeout: float, init_method: str, *, needed: int) -> Any:
        made.append(needed)
        return OldOptions()

    functions.register_backend("OLD", counting, init)
    functions.register_backend("NEEDY", construct, init)
    options = functions.construct_rpc_backend_options("OLD", needed=1)
    assert choose(None, options) is B.OLD
    assert made == [1]


class DerivedOptions(rpc.TensorPipeRpcBackendOptions):
    """The options of an old-style backend that is built on torch's TENSORPIPE; torch_npu's are."""


def test_options_of_an_old_style_backend_outrank_their_base(with_torchs: Registry) -> None:
    """A backend whose options are exactly of that class goes before one that has a base of it."""

    def construct_derived(rpc_timeout: float, init_method: str, **options: Any) -> Any:
        return DerivedOptions(rpc_timeout=rpc_timeout, init_method=init_method, **options)

    functions.register_backend("OLD", construct_derived, init)
    given = DerivedOptions(num_worker_threads=3)
    resolved = resolve(None, given)
    assert resolved.name == "OLD"
    assert resolved.options is given
    assert choose(None, rpc.TensorPipeRpcBackendOptions()) is B.TENSORPIPE


def test_an_old_style_pair_of_a_package_is_found_by_its_default_options(
    site: Site, with_torchs: Registry
) -> None:
    source = BACKEND.replace(
        "BACKEND = Backend(", "BACKEND = (construct, init)\n    UNUSED = dict("
    )
    module = site.add_backend("PIGEON", source)
    assert choose(None, options_of(site, module)) is B.PIGEON


def test_old_style_backends_are_not_constructed_where_a_declared_type_fits(
    with_torchs: Registry,
) -> None:
    made: list[Any] = []

    def noting(rpc_timeout: float, init_method: str) -> Any:
        made.append(init_method)
        return OldOptions()

    functions.register_backend("OLD", noting, init)
    assert choose(None, rpc.TensorPipeRpcBackendOptions()) is B.TENSORPIPE
    assert made == []


def test_options_of_no_backend_are_refused_with_torchs_text_and_the_types_there_are(
    site: Site, with_torchs: Registry
) -> None:
    site.add_backend("PIGEON")
    with pytest.raises(TypeError, match="Could not infer backend for options") as caught:
        choose(None, object())
    assert "TENSORPIPE: TensorPipeRpcBackendOptions" in str(caught.value)
    # It was loaded to see its type, which is thereby known.
    assert "PIGEON: Options" in str(caught.value)


def test_a_hook_that_fails_during_inference_is_named(site: Site, with_torchs: Registry) -> None:
    """The program learns of the hook, and not that no backend fits its options."""
    site.add_hooks(
        "broken",
        """
        @hookimpl
        def rpc_backends_construct_options(backend):
            raise OSError("mine")
        """,
    )
    functions.register_backend("OLD", construct, init)

    class Strange(rpc.RpcBackendOptions):
        pass

    with pytest.raises(HookError, match="rpc-hooks-broken"):
        resolve(None, Strange())
