"""Environment variables are parsed strictly: an error shows the value and says what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint

import pytest

from core.kit import Children, Site, calls
from rpc_backends_core import _settings as settings
from rpc_backends_core._errors import BackendDeniedError, SettingError
from rpc_backends_core._other_variables import other_variables
from rpc_backends_core._record import Record, State
from rpc_backends_core._registry import Registry

# --- single values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "enabled"),
    [("", True), ("1", True), (" Yes ", True), ("0", False), ("OFF", False), (" no\n", False)],
)
def test_autoload_accepts_yes_and_no(text: str, enabled: bool) -> None:
    assert settings.autoload_enabled({"RPC_BACKENDS_AUTOLOAD": text}) is enabled


@pytest.mark.parametrize("text", ["2", "flase", "0.0", "none"])
def test_autoload_refuses_other_values(text: str) -> None:
    with pytest.raises(SettingError, match=f"RPC_BACKENDS_AUTOLOAD='{text}'.*Set it to 1 or 0"):
        settings.autoload_enabled({"RPC_BACKENDS_AUTOLOAD": text})


@pytest.mark.parametrize(("text", "name"), [("", None), ("  ", None), (" ZEROMQ ", "ZEROMQ")])
def test_the_default_is_a_name_or_none(text: str, name: str | None) -> None:
    assert settings.Settings.from_environment({"RPC_BACKENDS_DEFAULT": text}).default == name


@pytest.mark.parametrize(("text", "name"), [("", None), ("  ", None), (" ZEROMQ ", "ZEROMQ")])
def test_the_override_is_a_name_or_none(text: str, name: str | None) -> None:
    assert settings.Settings.from_environment({"RPC_BACKENDS_OVERRIDE": text}).override == name


def test_join_timeout_defaults_to_half_an_hour() -> None:
    assert settings.join_timeout({}) == 1800
    assert settings.join_timeout({"RPC_BACKENDS_JOIN_TIMEOUT": " 2.5 "}) == 2.5


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "5 min", "1e400", "ten"])
def test_join_timeout_must_be_a_positive_number(text: str) -> None:
    with pytest.raises(
        SettingError, match=r"positive number of seconds. Example: .*=300"
    ) as caught:
        settings.join_timeout({"RPC_BACKENDS_JOIN_TIMEOUT": text})
    assert repr(text) in str(caught.value)


# --- allow and deny lists --------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_ALLOW", "RPC_BACKENDS_DENY"])
@pytest.mark.parametrize("text", ["A,,B", "A,", "A;B", "A B", "rpc-backend-zeromq"])
def test_a_malformed_list_is_refused_with_an_example(variable: str, text: str) -> None:
    with pytest.raises(SettingError, match=f"for example {variable}=TENSORPIPE,ZEROMQ") as caught:
        settings.Choice({variable: text})
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_ALLOW", "RPC_BACKENDS_DENY"])
def test_an_unknown_name_in_a_list_is_refused(variable: str) -> None:
    choice = settings.Choice({variable: "ZEROMG"})
    with pytest.raises(SettingError, match=rf"{variable} names 'ZEROMG'.*Did you mean 'ZEROMQ'\?"):
        choice.check(["ZEROMQ", "PIGEON"])


def test_a_name_in_both_lists_is_refused() -> None:
    with pytest.raises(SettingError, match="'pigeon' is in both"):
        settings.Choice({"RPC_BACKENDS_ALLOW": "PIGEON", "RPC_BACKENDS_DENY": "pigeon"})


def test_an_empty_list_is_no_list() -> None:
    choice = settings.Choice({"RPC_BACKENDS_ALLOW": " ", "RPC_BACKENDS_DENY": ""})
    assert choice.denial("ANY") is None


ZEROMQS = {"RPC_BACKENDS_ZEROMQ_PORTS": "where to listen", "RPC_BACKENDS_ZEROMQ_SECRET": "shared"}
DUMPS = {"RPC_BACKENDS_DUMP": "where", "RPC_BACKENDS_DUMP_AT_END": "when"}


def record(name: str, distribution: str, value: str = "", state: State = "found") -> Record:
    """Return what discovery finds of an installed package."""
    point = EntryPoint(name, value, "a group")
    return Record(name, "plugin", distribution, "1.0", value, state=state, entry_point=point)


#: ZEROMQ and the hook package `policy` are installed, and so is the package with the recorder.
INSTALLED = [
    record("ZEROMQ", "rpc-backend-zeromq"),
    record("policy", "rpc-policy"),
    record("recorder", "rpc-backends-inspect"),
]
DECLARATIONS = [
    record("ZEROMQ", "rpc-backend-zeromq", f"{__name__}:ZEROMQS"),
    record("DUMP", "rpc-backends-inspect", f"{__name__}:DUMPS.copy"),
]


def problem_of(variable: str, text: str = "x") -> str | None:
    """Return what is said of a variable."""
    [variable_found] = other_variables(INSTALLED, {variable: text, "PATH": ""}, DECLARATIONS)
    assert variable_found.name == variable
    return variable_found.problem


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("rpc_backends_override", "RPC_BACKENDS_OVERRIDE"),
        ("RPCBACKENDS_OVERRIDE", "RPC_BACKENDS_OVERRIDE"),
        ("RPC_BACKENDS_DEFUALT", "RPC_BACKENDS_DEFAULT"),
        ("RPC_BACKENDS_OVERIDE", "RPC_BACKENDS_OVERRIDE"),
        ("RPC_BACKEND_OVERRIDE", "RPC_BACKENDS_OVERRIDE"),
        ("RPC_BACKENDS_ALOW", "RPC_BACKENDS_ALLOW"),
        ("RPC_BACKENDS_FAULT", "RPC_BACKENDS_FAULTS"),
        ("RPC_BACKENDS_RECODER", "RPC_BACKENDS_RECORDER"),
        ("RPC_BACKENDS_AGENT_ANY_TORCH", "RPC_BACKENDS_AGENTS_ANY_TORCH"),
        ("RPC_BACKENDS_AGENTS_ANY_TROCH", "RPC_BACKENDS_AGENTS_ANY_TORCH"),
        ("RPC_BACKENDS_ZEROMQ_SECERT", "RPC_BACKENDS_ZEROMQ_SECRET"),
        ("RPC_BACKENDS_ZEROMQ_PORT", "RPC_BACKENDS_ZEROMQ_PORTS"),
        ("RPC_BACKENDS_ZEROMG_PORTS", "RPC_BACKENDS_ZEROMQ_PORTS"),
        ("RPC_BACKENDS_DUMP_AT_ENDS", "RPC_BACKENDS_DUMP_AT_END"),
    ],
)
def test_a_misspelt_variable_gets_the_nearest_name(variable: str, nearest: str) -> None:
    assert problem_of(variable) == (
        f"is not read by any package of this project. Did you mean {nearest}?"
    )


@pytest.mark.parametrize(
    "variable",
    [
        "RPC_BACKENDS_ZEROMQ_PORTS",
        "RPC_BACKENDS_ZEROMQ_SOMETHING_ELSE",
        "RPC_BACKENDS_POLICY",
        "RPC_BACKENDS_POLICY_FILE",
        "RPC_BACKENDS_X",
    ],
)
def test_a_variable_of_another_package_is_no_problem(variable: str) -> None:
    assert problem_of(variable) is None


def test_a_variable_of_a_missing_package_has_no_effect() -> None:
    assert problem_of("RPC_BACKENDS_FAULTS_SEED") == (
        "has no effect: rpc-backends-faults, which reads it, is not installed"
    )


@pytest.mark.parametrize("text", ["", "off", "OFF"])
def test_a_missing_package_is_not_missed_by_a_variable_that_asks_for_nothing(text: str) -> None:
    assert problem_of("RPC_BACKENDS_FAULTS", text) is None


def test_a_package_that_may_not_be_used_is_not_imported_for_its_variables() -> None:
    denied = [record("ZEROMQ", "rpc-backend-zeromq", state="denied")]
    for installed in (denied, []):
        declarations = [record("ZEROMQ", "rpc-backend-zeromq", "must_not_be_imported:VARIABLES")]
        with no_import("must_not_be_imported"):
            other_variables(installed, {"RPC_BACKENDS_ZEROMQ_PROTS": "x"}, declarations)


def test_packages_are_only_imported_for_variables_like_theirs() -> None:
    declarations = [record("ZEROMQ", "rpc-backend-zeromq", "must_not_be_imported:VARIABLES")]
    variables = {"RPC_BACKENDS_FAULT": "x", "RPC_BACKENDS_OVERIDE": "x", "RPC_BACKENDS_X": "x"}
    with no_import("must_not_be_imported"):
        assert len(other_variables(INSTALLED, variables, declarations)) == len(variables)


def test_declared_variables_that_cannot_be_imported_are_not_judged() -> None:
    declarations = [record("ZEROMQ", "rpc-backend-zeromq", "not_there:VARIABLES")]
    [misspelt] = other_variables(INSTALLED, {"RPC_BACKENDS_ZEROMQ_PROTS": "x"}, declarations)
    assert (misspelt.owner, misspelt.problem) == ("ZEROMQ", None)


@contextmanager
def no_import(module: str) -> Iterator[None]:
    """Fail if a module is asked for."""

    class Guard:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            asked.append(name)

    asked: list[str] = []
    sys.meta_path.insert(0, guard := Guard())
    try:
        yield
    finally:
        sys.meta_path.remove(guard)
    assert module not in asked


def test_init_rpc_warns_of_a_misspelt_variable(site: Site, children: Children) -> None:
    site.add_backend("PIGEON")
    said = children.run(
        """
        import logging, sys
        from torch.distributed import rpc
        from rpc_backends_core import _patches as patches
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        patches.install()
        try:
            rpc.init_rpc("w", "NONE", 0, 1)
        except AttributeError:  # there is no such backend
            pass
        """,
        site=site,
        env={"RPC_BACKENDS_OVERIDE": "PIGEON"},
    )
    assert said == (
        "WARNING the environment variable RPC_BACKENDS_OVERIDE is not read by any package of this "
        "project. Did you mean RPC_BACKENDS_OVERRIDE?"
    )


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        (
            "RPC_BACKENDS_GUARD",
            "has no effect: rpc-backends-guard, which reads it, is not installed",
        ),
        (
            "RPC_BACKENDS_GAURD",
            "is not read by any package of this project. Did you mean RPC_BACKENDS_GUARD?",
        ),
    ],
)
def test_init_rpc_refuses_without_the_protection_that_is_asked_for(
    site: Site, children: Children, variable: str, problem: str
) -> None:
    site.add_backend("PIGEON")
    said = children.run(
        """
        from torch.distributed import rpc
        from rpc_backends_core import _patches as patches
        patches.install()
        try:
            rpc.init_rpc("w", "PIGEON", 0, 1)
        except Exception as error:
            print(type(error).__name__, error)
        """,
        site=site,
        env={variable: "policy.toml"},
    )
    assert said == (
        f"SettingError the environment variable {variable} asks for a protection that is not there: "
        f"it {problem}"
    )


# --- effect on the registry ------------------------------------------------------------------------


def test_a_denied_plugin_names_its_package_and_the_variable(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DENY", "pigeon")
    registry = Registry(scan=site.scan)
    with pytest.raises(BackendDeniedError, match=r"rpc-backend-pigeon 1.0.*RPC_BACKENDS_DENY"):
        registry.backend("PIGEON")
    assert registry.names() == []
    assert [record.state for record in registry.records()] == ["denied"]
    assert calls(module) == []


def test_an_allow_list_excludes_all_other_plugins(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    site.add_backend("CARRIER")
    monkeypatch.setenv("RPC_BACKENDS_ALLOW", "Pigeon")
    registry = Registry(scan=site.scan)
    assert registry.names() == ["PIGEON"]
    with pytest.raises(BackendDeniedError, match="RPC_BACKENDS_ALLOW does not name it"):
        registry.find("CARRIER")


def test_lists_do_not_affect_registrations_of_the_process(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_ALLOW", "PIGEON")
    registry = Registry(scan=site.scan)
    registry.register("MINE", (print, print), owner="me")
    assert registry.names() == ["MINE", "PIGEON"]


def test_denying_a_plugin_falls_back_to_torchs_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("TENSORPIPE")
    monkeypatch.setenv("RPC_BACKENDS_DENY", "TENSORPIPE")
    registry = Registry(scan=site.scan)
    registry.register("TENSORPIPE", (print, print), owner="torch", torch_own=True)
    assert registry.find("TENSORPIPE").source == "torch"
    assert registry.names() == ["TENSORPIPE"]


def test_denying_a_name_resolves_its_conflict(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("dist-a", backends={"TENSORPIPE": "a:X"})
    site.add("dist-b", backends={"TENSORPIPE": "b:X"})
    monkeypatch.setenv("RPC_BACKENDS_DENY", "TENSORPIPE")
    registry = Registry(scan=site.scan)
    registry.register("TENSORPIPE", (print, print), owner="torch", torch_own=True)
    # Neither package may be used, so there is no conflict any more.
    assert registry.find("TENSORPIPE").source == "torch"


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_ALLOW", "RPC_BACKENDS_DENY"])
def test_a_misspelt_list_is_an_error_each_time(
    site: Site, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv(variable, "PIGOEN")
    registry = Registry(scan=site.scan)
    for _ in range(2):
        with pytest.raises(SettingError, match="Did you mean 'PIGEON'"):
            registry.names()


def test_registrations_work_with_a_misspelt_list(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_DENY", "TYPO")
    registry = Registry(scan=site.scan)
    registry.register("MINE", (print, print), owner="me", look=False)
    assert registry.backend("MINE").value == (print, print)


def test_a_corrected_variable_takes_effect_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DENY", "PIGOEN")
    registry = Registry(scan=site.scan)
    with pytest.raises(SettingError):
        registry.names()
    monkeypatch.delenv("RPC_BACKENDS_DENY")
    assert registry.names() == ["PIGEON"]
