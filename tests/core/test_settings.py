"""Environment variables are parsed strictly: a typo is an error that shows it and says what to do."""

from __future__ import annotations

import pytest

from core.kit import Site, calls
from rpc_backends_core import _settings as settings
from rpc_backends_core._errors import BackendDeniedError, SettingError
from rpc_backends_core._registry import Registry

# --- single values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "enabled"),
    [("", True), ("1", True), (" Yes ", True), ("0", False), ("OFF", False), (" no\n", False)],
)
def test_autoload_understands_a_yes_or_a_no(text: str, enabled: bool) -> None:
    assert settings.autoload_enabled({"RPC_BACKENDS_AUTOLOAD": text}) is enabled


@pytest.mark.parametrize("text", ["2", "flase", "0.0", "none"])
def test_autoload_refuses_anything_else_with_value_and_remedy(text: str) -> None:
    with pytest.raises(SettingError, match=f"RPC_BACKENDS_AUTOLOAD='{text}'.*Set it to 1 or 0"):
        settings.autoload_enabled({"RPC_BACKENDS_AUTOLOAD": text})


@pytest.mark.parametrize(("text", "name"), [("", None), ("  ", None), (" ZEROMQ ", "ZEROMQ")])
def test_default_backend_is_a_name_or_nothing(text: str, name: str | None) -> None:
    assert settings.Settings.from_environment({"RPC_BACKENDS_DEFAULT": text}).default == name


@pytest.mark.parametrize(("text", "name"), [("", None), ("  ", None), (" ZEROMQ ", "ZEROMQ")])
def test_override_backend_is_a_name_or_nothing(text: str, name: str | None) -> None:
    assert settings.Settings.from_environment({"RPC_BACKENDS_OVERRIDE": text}).override == name


def test_join_timeout_is_half_an_hour_unless_it_is_set() -> None:
    assert settings.join_timeout({}) == 1800
    assert settings.join_timeout({"RPC_BACKENDS_JOIN_TIMEOUT": " 2.5 "}) == 2.5


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "5 min", "1e400", "ten"])
def test_join_timeout_refuses_what_is_no_positive_number_of_seconds(text: str) -> None:
    with pytest.raises(
        SettingError, match=r"positive number of seconds. Example: .*=300"
    ) as caught:
        settings.join_timeout({"RPC_BACKENDS_JOIN_TIMEOUT": text})
    assert repr(text) in str(caught.value)


# --- which plugins may be used ---------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_ALLOW", "RPC_BACKENDS_DENY"])
@pytest.mark.parametrize("text", ["A,,B", "A,", "A;B", "A B", "rpc-backend-zeromq"])
def test_a_list_that_is_not_names_with_commas_is_refused_with_an_example(
    variable: str, text: str
) -> None:
    with pytest.raises(SettingError, match=f"for example {variable}=TENSORPIPE,ZEROMQ") as caught:
        settings.Choice({variable: text})
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_ALLOW", "RPC_BACKENDS_DENY"])
def test_a_name_that_nobody_has_is_refused_with_the_nearest(variable: str) -> None:
    choice = settings.Choice({variable: "ZEROMG"})
    with pytest.raises(SettingError, match=rf"{variable} names 'ZEROMG'.*Did you mean 'ZEROMQ'\?"):
        choice.check(["ZEROMQ", "PIGEON"])


def test_a_name_in_both_lists_is_refused_whatever_its_case() -> None:
    with pytest.raises(SettingError, match="'pigeon' is in both"):
        settings.Choice({"RPC_BACKENDS_ALLOW": "PIGEON", "RPC_BACKENDS_DENY": "pigeon"})


def test_an_empty_list_is_no_list() -> None:
    choice = settings.Choice({"RPC_BACKENDS_ALLOW": " ", "RPC_BACKENDS_DENY": ""})
    assert choice.denial("ANY") is None


def test_a_variable_that_nobody_reads_is_shown_with_the_nearest_real_one() -> None:
    environ = {"RPC_BACKENDS_DEFUALT": "X", "RPC_BACKENDS_DENY": "X", "PATH": ""}
    assert settings.unknown_variables(environ) == [("RPC_BACKENDS_DEFUALT", "RPC_BACKENDS_DEFAULT")]


# --- their effect on the registry ------------------------------------------------------------------


def test_a_denied_plugin_is_refused_with_its_package_and_the_variable(
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


def test_an_allow_list_leaves_out_all_other_plugins(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    site.add_backend("CARRIER")
    monkeypatch.setenv("RPC_BACKENDS_ALLOW", "Pigeon")
    registry = Registry(scan=site.scan)
    assert registry.names() == ["PIGEON"]
    with pytest.raises(BackendDeniedError, match="RPC_BACKENDS_ALLOW does not name it"):
        registry.find("CARRIER")


def test_lists_do_not_touch_what_is_registered_in_the_process(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_ALLOW", "PIGEON")
    registry = Registry(scan=site.scan)
    registry.register("MINE", (print, print), owner="me")
    assert registry.names() == ["MINE", "PIGEON"]


def test_a_denied_plugin_gives_way_to_torchs_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("TENSORPIPE")
    monkeypatch.setenv("RPC_BACKENDS_DENY", "TENSORPIPE")
    registry = Registry(scan=site.scan)
    registry.register("TENSORPIPE", (print, print), owner="torch", torch_own=True)
    assert registry.find("TENSORPIPE").source == "torch"
    assert registry.names() == ["TENSORPIPE"]


def test_denying_a_name_that_two_packages_claim_settles_the_conflict(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("dist-a", backends={"TENSORPIPE": "a:X"})
    site.add("dist-b", backends={"TENSORPIPE": "b:X"})
    monkeypatch.setenv("RPC_BACKENDS_DENY", "TENSORPIPE")
    registry = Registry(scan=site.scan)
    registry.register("TENSORPIPE", (print, print), owner="torch", torch_own=True)
    # Neither of the two may be used, so which of them is meant is no question any more.
    assert registry.find("TENSORPIPE").source == "torch"


@pytest.mark.parametrize("variable", ["RPC_BACKENDS_ALLOW", "RPC_BACKENDS_DENY"])
def test_a_typo_is_told_to_whoever_asks_first_and_to_all_after(
    site: Site, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv(variable, "PIGOEN")
    registry = Registry(scan=site.scan)
    for _ in range(2):
        with pytest.raises(SettingError, match="Did you mean 'PIGEON'"):
            registry.names()


def test_what_is_registered_in_the_process_is_usable_whatever_the_variables_say(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_DENY", "TYPO")
    registry = Registry(scan=site.scan)
    registry.register("MINE", (print, print), owner="me", look=False)
    assert registry.backend("MINE").value == (print, print)


def test_a_variable_mended_since_is_seen_without_a_new_process(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DENY", "PIGOEN")
    registry = Registry(scan=site.scan)
    with pytest.raises(SettingError):
        registry.names()
    monkeypatch.delenv("RPC_BACKENDS_DENY")
    assert registry.names() == ["PIGEON"]
