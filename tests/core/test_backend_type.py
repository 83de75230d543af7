"""`BackendType` is one enum object that grows in place; its members keep their identity."""

from __future__ import annotations

import copy
import enum
import inspect
import pickle
from typing import Any

import pytest
from torch.distributed import rpc
from torch.distributed.rpc import backend_registry

import rpc_backends_core
from core.kit import Site, calls, fresh
from rpc_backends_core import _api as api
from rpc_backends_core import _patches as patches
from rpc_backends_core._backend import Backend
from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._errors import (
    BackendConflictError,
    BackendLoadError,
    UnknownBackendError,
)
from rpc_backends_core._registry import Registry
from rpc_backends_core._resolve import name_of

# The members come from the registry, so mypy cannot know them.
B: Any = BackendType


def construct(rpc_timeout: float, init_method: str, **options: Any) -> Any:
    del rpc_timeout, init_method, options


def init(store: Any, name: Any, rank: Any, world_size: Any, rpc_backend_options: Any) -> Any:
    del store, name, rank, world_size, rpc_backend_options


def old_enum(*names: str) -> Any:
    """Make an enum the way torch's register_backend does."""
    value = backend_registry.BackendValue(construct, init)
    return enum.Enum(value="BackendType", names={name: (value, name) for name in names})


# --- one object ------------------------------------------------------------------------------------


def test_torch_and_the_core_share_one_object() -> None:
    patches.install()
    assert rpc.BackendType is B
    assert backend_registry.BackendType is B
    assert rpc_backends_core.BackendType is B


def test_it_passes_checks_for_an_enum() -> None:
    assert issubclass(BackendType, enum.Enum)
    assert isinstance(BackendType, enum.EnumMeta)
    assert inspect.isclass(BackendType)


def test_its_members_are_instances_of_it(with_torchs: Registry) -> None:
    assert isinstance(B.TENSORPIPE, BackendType)
    assert isinstance(B.TENSORPIPE, enum.Enum)
    assert type(B.TENSORPIPE) is BackendType


# --- lookup ----------------------------------------------------------------------------------------


def test_every_way_of_lookup_gives_the_same_member(site: Site, registry: Registry) -> None:
    module = site.add_backend("PIGEON")
    member = B.PIGEON
    assert B["PIGEON"] is member
    assert B("PIGEON") is member
    assert B(member) is member
    assert getattr(BackendType, "PIGEON") is member  # noqa: B009 - the function is what is tested
    assert list(BackendType) == [member]
    assert B.__members__["PIGEON"] is member
    assert calls(module) == []


def test_strings_ignore_case_and_attributes_do_not(site: Site, registry: Registry) -> None:
    site.add_backend("PIGEON")
    assert B["pigeon"] is B("Pigeon") is B.PIGEON
    assert "pigeon" in BackendType
    with pytest.raises(AttributeError, match=r"Did you mean BackendType\.PIGEON\?"):
        _ = B.pigeon
    assert hasattr(BackendType, "PIGEON")
    assert not hasattr(BackendType, "pigeon")


def test_an_unknown_name_raises_the_error_of_each_lookup(registry: Registry) -> None:
    with pytest.raises(AttributeError):
        _ = B.NOTHING
    with pytest.raises(KeyError):
        B["NOTHING"]
    with pytest.raises(ValueError, match="NOTHING"):
        B("NOTHING")
    assert getattr(BackendType, "NOTHING", "default") == "default"


@pytest.mark.parametrize("key", [5, None, [], {}, object(), b"TENSORPIPE", 1.5])
def test_other_objects_are_not_contained(with_torchs: Registry, key: Any) -> None:
    assert key not in BackendType
    with pytest.raises((KeyError, TypeError)):
        B[key]
    with pytest.raises(ValueError, match="is not a valid BackendType"):
        B(key)


def test_private_names_are_not_looked_up(site: Site, registry: Registry) -> None:
    site.add_backend("PIGEON")
    for name in ("_repr_html_", "__wrapped__", "_PRIVATE"):
        assert not hasattr(BackendType, name)
    # Nothing was scanned. Tools that inspect a class look up many such names.
    assert registry._plugins is None


@pytest.mark.parametrize("name", ["mro", "name", "value", "register"])
def test_a_plugin_may_have_the_name_of_a_class_attribute(
    site: Site, registry: Registry, name: str
) -> None:
    module = site.add_backend("PIGEON")
    site.add("rpc-backend-odd", backends={name: f"{module}:BACKEND"})
    (record,) = [each for each in api.records() if each.name == name]
    if record.state != "invalid":
        assert getattr(BackendType, name) is B[name]


def test_length_iteration_members_and_dir_agree(site: Site, with_torchs: Registry) -> None:
    site.add_backend("PIGEON")
    registered = api.register_backend("MINE", construct, init)
    members = [B.TENSORPIPE, registered, B.PIGEON]
    assert list(BackendType) == members
    assert list(reversed(BackendType)) == members[::-1]
    assert len(BackendType) == 3
    assert list(B.__members__.items()) == [(member.name, member) for member in members]
    assert {"TENSORPIPE", "MINE", "PIGEON", "__members__"} <= set(dir(BackendType))


def test_it_is_true_even_when_it_is_empty(registry: Registry) -> None:
    assert len(BackendType) == 0
    assert bool(BackendType) is True


def test_the_mapping_of_members_is_read_only(with_torchs: Registry) -> None:
    with pytest.raises(TypeError):
        B.__members__["NEW"] = 1


def test_a_conflict_is_raised_when_the_name_is_used(site: Site, registry: Registry) -> None:
    site.add_backend("PIGEON")
    site.add("dist-a", backends={"CLAIMED": "a:X"})
    site.add("dist-b", backends={"CLAIMED": "b:X"})
    assert [member.name for member in BackendType] == ["PIGEON"]
    for use in (B.__getattr__, B.__getitem__, B):
        with pytest.raises(BackendConflictError, match=r"dist-a.*dist-b"):
            use("CLAIMED")


# --- identity --------------------------------------------------------------------------------------


def test_a_member_keeps_its_identity_when_others_appear(site: Site, with_torchs: Registry) -> None:
    site.add_backend("PIGEON")
    before = {"TENSORPIPE": B.TENSORPIPE, "PIGEON": B.PIGEON}
    api.register_backend("MINE", construct, init)
    site.add_backend("CARRIER")
    api.refresh()
    B.PIGEON.value  # noqa: B018 - loads it
    for name, member in before.items():
        assert B[name] is member
        assert member in BackendType


def test_a_name_registered_again_is_the_same_member(
    registry: Registry,
) -> None:
    member: Any = api.register_backend("MINE", print, print)
    api.unregister_backend("MINE")
    assert member not in BackendType
    with pytest.raises(UnknownBackendError):
        _ = member.value
    assert api.register_backend("MINE", construct, init) is member
    assert member.value == (construct, init)


def test_backends_with_the_same_handlers_stay_two_members(registry: Registry) -> None:
    first: Any = api.register_backend("ONE", construct, init)
    second: Any = api.register_backend("TWO", construct, init)
    assert first is not second
    assert first != second
    assert [member.name for member in BackendType] == ["ONE", "TWO"]
    assert first.value == second.value


def test_members_are_hashable(with_torchs: Registry) -> None:
    registered = api.register_backend("MINE", construct, init)
    table = {B.TENSORPIPE: 1, registered: 2}
    assert table[B["tensorpipe"]] == 1
    assert len({B.TENSORPIPE, B("TENSORPIPE"), registered}) == 2


def test_a_member_equals_itself_alone(with_torchs: Registry) -> None:
    member = B.TENSORPIPE
    assert member == B["tensorpipe"]
    for value in ("TENSORPIPE", old_enum("TENSORPIPE").TENSORPIPE, None, B.TENSORPIPE.value):
        assert member != value


def test_a_member_shows_its_name(site: Site, registry: Registry) -> None:
    site.add_backend("PIGEON", "raise OSError")
    assert repr(B.PIGEON) == "BackendType.PIGEON"
    assert str(B.PIGEON) == f"{B.PIGEON}" == "BackendType.PIGEON"
    assert B.PIGEON.name == "PIGEON"


def test_the_repr_of_the_class_scans_nothing(registry: Registry) -> None:
    assert repr(BackendType) == "<enum 'BackendType'>"
    assert registry._plugins is None


# --- value -----------------------------------------------------------------------------------------


def test_a_value_has_torchs_two_handler_fields(site: Site, registry: Registry) -> None:
    site.add_backend("PIGEON")
    value = B.PIGEON.value
    assert isinstance(value, backend_registry.BackendValue)
    assert value.construct_rpc_backend_options_handler is value[0]
    assert value.init_backend_handler is value[1]


def test_the_value_of_a_broken_plugin_raises_the_cause(site: Site, registry: Registry) -> None:
    site.add_backend("ODD", "raise OSError('boom')")
    member = B.ODD
    with pytest.raises(BackendLoadError) as caught:
        _ = member.value
    assert isinstance(caught.value.__cause__, OSError)


def test_lookup_by_handlers_finds_the_member(
    with_torchs: Registry,
) -> None:
    member = api.register_backend("MINE", construct, init)
    assert B(backend_registry.BackendValue(construct, init)) is member


def test_lookup_by_handlers_loads_no_plugin(site: Site, registry: Registry) -> None:
    module = site.add_backend("PIGEON")
    with pytest.raises(ValueError, match="not a valid BackendType"):
        B((construct, init))
    assert calls(module) == []


def test_lookup_by_handlers_skips_unusable_names(site: Site, with_torchs: Registry) -> None:
    site.add("dist-a", backends={"TENSORPIPE": "a:X"})
    site.add("dist-b", backends={"TENSORPIPE": "b:X"})
    api.register_backend("ODD", None, None)
    member = api.register_backend("MINE", construct, init)
    assert B((construct, init)) is member


# --- pickle and copy -------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_member_keeps_its_identity(site: Site, registry: Registry, protocol: int) -> None:
    module = site.add_backend("PIGEON")
    assert pickle.loads(pickle.dumps(B.PIGEON, protocol)) is B.PIGEON
    assert calls(module) == []


def test_a_copied_member_keeps_its_identity(
    with_torchs: Registry,
) -> None:
    member = B.TENSORPIPE
    assert copy.copy(member) is member
    assert copy.deepcopy({"backend": [member]}) == {"backend": [member]}


def test_unpickling_an_unregistered_name_is_an_error(registry: Registry) -> None:
    data = pickle.dumps(api.register_backend("MINE", construct, init))
    api.unregister_backend("MINE")
    with pytest.raises(UnknownBackendError, match="'MINE'"):
        pickle.loads(data)


def test_the_pickled_class_keeps_its_identity() -> None:
    assert pickle.loads(pickle.dumps(BackendType)) is BackendType


def test_a_fresh_process_unpickles_a_member(site: Site, registry: Registry) -> None:
    site.add_backend("PIGEON")
    child = fresh(
        """
        import pickle, sys
        sys.path.insert(0, sys.argv[1])
        member = pickle.loads(bytes.fromhex(sys.argv[2]))
        print("sample_backend_pigeon" in sys.modules)
        from torch.distributed import rpc
        print(member, member is rpc.BackendType.PIGEON, member.value[1].__module__)
        """,
        str(site.folder),
        pickle.dumps(B.PIGEON).hex(),
    )
    with child as interpreter:
        output = interpreter.output()
    assert output.split("\n") == ["False", "BackendType.PIGEON True sample_backend_pigeon"]


# --- torch's own enums -----------------------------------------------------------------------------


def test_members_of_torchs_own_enum_are_accepted(with_torchs: Registry) -> None:
    torchs = old_enum("TENSORPIPE", "UNKNOWN")
    assert B(torchs.TENSORPIPE) is B.TENSORPIPE
    assert torchs.TENSORPIPE in BackendType
    assert name_of(torchs.TENSORPIPE) == "TENSORPIPE"
    assert torchs.UNKNOWN not in BackendType
    with pytest.raises(TypeError, match="must be a member of BackendType"):
        name_of(torchs.UNKNOWN)


def test_members_of_other_enums_are_refused(with_torchs: Registry) -> None:
    class Color(enum.Enum):
        TENSORPIPE = 1

    assert Color.TENSORPIPE not in BackendType
    with pytest.raises(TypeError, match="must be a member of BackendType"):
        name_of(Color.TENSORPIPE)


# --- refused operations ----------------------------------------------------------------------------


def test_it_cannot_be_subclassed() -> None:
    with pytest.raises(TypeError):

        class Sub(BackendType):
            pass


def test_the_functional_enum_api_is_refused() -> None:
    with pytest.raises(TypeError, match="register a backend to extend it"):
        B("New", names=["A"])


# --- the handlers of a plugin ----------------------------------------------------------------------


def test_a_backend_refuses_fields_of_a_wrong_type() -> None:
    good: Any = {
        "construct_rpc_backend_options_handler": construct,
        "init_backend_handler": init,
    }
    Backend(**good)
    for field, value in [
        ("construct_rpc_backend_options_handler", None),
        ("init_backend_handler", "name"),
        ("options_type", "Options"),
        ("capabilities", "encryption"),
    ]:
        with pytest.raises(TypeError, match=field):
            Backend(**{**good, field: value})
