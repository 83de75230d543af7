"""The secret: its format, its file and its sources."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.errors import SecretError
from rpc_backends_agents.engine.secret import Secret

FILE = "RPC_BACKENDS_ZEROMQ_SECRET_FILE"
TEXT = "RPC_BACKENDS_ZEROMQ_SECRET"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    path.chmod(mode)
    return path


def with_two_swapped(text: str) -> str:
    """Return a secret with two different neighbouring characters swapped."""
    at = next(i for i in range(20, len(text)) if text[i] != text[i + 1])
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


# --- format --------------------------------------------------------------------------------------


def test_secrets_are_random_and_can_be_typed(text: str) -> None:
    assert text != secret.generate()
    assert text.startswith("rpcsecret1-")
    assert len(text) == secret.LENGTH
    assert text.isascii()
    assert not set(text) & set(" \t\n\"'`$&|;<>()*?[]{}~#!\\")


def test_surrounding_white_space_and_case_are_ignored(text: str) -> None:
    capitals = secret.PREFIX + text.removeprefix(secret.PREFIX).upper()

    assert secret.parse(f" {text}\r\n", "here") == secret.parse(capitals, "there")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda text: text[:-1],
            "68 characters but a secret has 69, so it was not copied completely",
        ),
        (lambda text: text + "a", "70 characters"),
        (lambda text: text[len(secret.PREFIX) :], "does not begin with 'rpcsecret1-'"),
        (lambda text: text.replace("1-", "2-"), "does not begin with"),
        (lambda _: "", "does not begin with"),
        (lambda _: "correct horse battery staple", "does not begin with"),
        (lambda text: text[:20] + ("b" if text[20] == "a" else "a") + text[21:], "checksum"),
        (with_two_swapped, "checksum"),
        (lambda text: text[:20] + "1" + text[21:], "checksum"),
        (lambda text: text[:20] + "\u00e9" + text[21:], "checksum"),
    ],
)
def test_an_altered_secret_is_refused_without_being_shown(
    text: str, change: object, why: str
) -> None:
    changed = change(text)  # type: ignore[operator]

    with pytest.raises(
        SecretError, match=f"here is not a secret: .*{why}.*`rpc-backends secret`"
    ) as e:
        secret.parse(changed, "here")

    assert text[25:40] not in str(e.value)


def test_any_changed_character_is_noticed(text: str) -> None:
    for place in range(len(text)):
        changed = "b" if text[place] == "a" else "a"
        with pytest.raises(SecretError):
            secret.parse(text[:place] + changed + text[place + 1 :], "here")


def test_secrets_are_equal_whatever_their_source(text: str) -> None:
    here, there = secret.parse(text, "here"), secret.parse(text, "there")

    assert here == there
    assert hash(here) == hash(there)
    assert here.fingerprint == there.fingerprint
    assert here != secret.parse(secret.generate(), "here")


def test_derived_keys_differ_by_purpose(a_secret: Secret) -> None:
    keys = {a_secret.derive(purpose) for purpose in ("publication", "fingerprint", "another")}

    assert len(keys) == 3
    assert all(len(key) == 32 for key in keys)
    assert a_secret.derive("publication") == a_secret.derive("publication")


# --- file ----------------------------------------------------------------------------------------


def test_a_secret_is_read_from_a_private_file(secret_file: Path, a_secret: Secret) -> None:
    assert secret.read(str(secret_file), "the file") == a_secret


def test_a_path_may_start_with_a_tilde(
    secret_file: Path, a_secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(secret_file.parent))

    assert secret.read(f"~/{secret_file.name}", "the file") == a_secret


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o602, 0o610])
def test_a_file_that_others_can_access_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    path = write(tmp_path / "open.secret", text, mode)

    with pytest.raises(SecretError, match=rf"its mode is {mode:04o}.*chmod 600 {path}"):
        secret.read(str(path), "the file")


def test_a_read_only_file_is_accepted(tmp_path: Path, text: str) -> None:
    assert secret.read(str(write(tmp_path / "s", text, 0o400)), "the file")


def test_a_missing_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match=r"the file cannot be read: .*nothing.*secret --out FILE"):
        secret.read(str(tmp_path / "nothing"), "the file")


def test_pipes_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)

    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(SecretError, match="the file is not a regular file"):
            secret.read(str(path), "the file")


@pytest.mark.parametrize("content", [b"\0" * 10_000, b"", b"\xff\xfe secret"])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "other", "")
    path.write_bytes(content)

    with pytest.raises(SecretError, match="the file is not a secret"):
        secret.read(str(path), "the file")


# --- sources -------------------------------------------------------------------------------------


def test_without_a_source_there_is_no_secret() -> None:
    assert secret.find("ZEROMQ", None, None, {}) is None
    assert secret.find("ZEROMQ", None, None, {TEXT: " ", FILE: ""}) is None


def test_options_and_variables_can_give_the_secret(
    secret_file: Path, text: str, a_secret: Secret
) -> None:
    secrets = [
        secret.find("ZEROMQ", a_secret, None, {}),
        secret.find("ZEROMQ", None, str(secret_file), {}),
        secret.find("ZEROMQ", None, None, {TEXT: text}),
        secret.find("ZEROMQ", None, None, {FILE: str(secret_file)}),
    ]

    assert secrets == [a_secret] * 4
    assert [each_secret.source for each_secret in secrets if each_secret] == [
        "the test",
        f"the option secret_file ({secret_file})",
        TEXT,
        f"{FILE} ({secret_file})",
    ]


def test_several_sources_may_give_the_same_secret(
    secret_file: Path, text: str, a_secret: Secret
) -> None:
    environ = {TEXT: text, FILE: str(secret_file)}

    assert secret.find("ZEROMQ", a_secret, str(secret_file), environ) == a_secret


def test_different_secrets_are_an_error_naming_both_sources(
    secret_file: Path, a_secret: Secret
) -> None:
    variable_secret = secret.generate()

    for given, file in ((a_secret, None), (None, str(secret_file))):
        with pytest.raises(SecretError, match=f"and {TEXT} give different secrets") as caught:
            secret.find("ZEROMQ", given, file, {TEXT: variable_secret})
        assert a_secret.fingerprint in str(caught.value)
        assert variable_secret[15:30] not in str(caught.value)


def test_an_invalid_secret_is_an_error_despite_another(a_secret: Secret, text: str) -> None:
    with pytest.raises(SecretError, match=f"{TEXT} is not a secret"):
        secret.find("ZEROMQ", a_secret, None, {TEXT: text[:-5]})
