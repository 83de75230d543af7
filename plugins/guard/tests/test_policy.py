"""A policy file is honoured to the letter or refused, with file and line."""

# ruff: noqa: E501  # a table is read by its rows
from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_guard import Policy, PolicyError, Rule, guarding, learning, read, use, words
from rpc_backends_guard.audit import Audit
from rpc_backends_guard.calls import Decisions
from rpc_backends_guard.policy import matches

GOOD = """
version = 1
mode = "warn"
audit = "log.jsonl"
allow_partial = true
max_depth = 7
max_bytes = 1000
types = ["a.b:C"]

[roles]
trainers = ["trainer*", "t"]

[[rule]]
peers = ["@trainers", "x"]
functions = ["a:f", "a.b:C.f"]
methods = ["a:C.f"]
references = ["a:g"]
operators = ["aten::add", "aten::sub.Tensor"]
scripts = ["__torch__.f"]
requests = ["fetch", "autograd", "profiling"]
"""


def write(folder: Path, text: str) -> Path:
    """Write a policy file."""
    file = folder / "policy.toml"
    file.write_text(text)
    return file


def test_a_policy_file_is_read_completely(tmp_path: Path) -> None:
    policy = read(write(tmp_path, GOOD))
    assert not policy.enforces
    assert policy.allow_partial
    assert (policy.max_depth, policy.max_bytes) == (7, 1000)
    assert policy.audit == tmp_path / "log.jsonl"
    assert policy.types == ("a.b:C",)
    assert len(policy.digest) == 64
    assert policy.rules == (
        Rule(
            peers=("trainer*", "t", "x"),
            functions=("a:f", "a.b:C.f"),
            methods=("a:C.f",),
            references=("a:g",),
            operators=("aten::add", "aten::sub.Tensor"),
            scripts=("__torch__.f",),
            requests=("fetch", "autograd", "profiling"),
        ),
    )


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("version = 1", "version = 2", "policy.toml:2: 'version' is 2; it must be 1"),
        ("version = 1", "", "'version' is missing; begin the policy with version = 1"),
        ("version = 1", "version = true", "'version' is True"),
        ('"warn"', '"Enforce"', "policy.toml:3: 'mode' is 'Enforce'; it must be 'enforce' or 'warn'"),
        ("mode =", "moed =", "'moed' is no key of the policy; did you mean 'mode'? allowed are version, mode"),
        ("functions =", "function =", "policy.toml:15: 'function' is no key of rule 1; did you mean 'functions'?"),
        ('"a:f"', '"a.f"', "policy.toml:15: 'a.f' in 'functions' of rule 1 is not written as"),
        ('"a:f"', '"os:*"', "'os:*' in 'functions' of rule 1 has a '*'"),
        ('"a:f"', '"a.b.f"', "did you mean 'a.b:f'?"),
        ('"aten::add"', '"torch.add"', "did you mean 'aten::add'?"),
        ("functions =", "types = []\nfunctions =", "'types' is no key of rule 1; it belongs to the whole policy"),
        ('"a:f"', "3", "in 'functions' of rule 1 is 3"),
        ('["a:g"]', '"a:g"', "policy.toml:17: 'references' in rule 1 is 'a:g'; it must be a list"),
        ('"aten::add"', '"aten:add"', "'aten:add' in 'operators'"),
        ('"aten::add"', '"aten::*"', "'aten::*' in 'operators'"),
        ('"fetch"', '"fetching"', "'fetching' in 'requests' of rule 1"),
        ('"@trainers"', '"@trainer"', "policy.toml:14: '@trainer' in rule 1 is no role of [roles]"),
        ('["@trainers", "x"]', "[]", "'peers' is missing or empty in rule 1"),
        ('"x"', '"x?"', "'x?' in 'peers' of rule 1"),
        ("allow_partial = true", 'allow_partial = "yes"', "'allow_partial' is 'yes'; it must be of type bool"),
        ("max_depth = 7", "max_depth = 0", "'max_depth' is 0; it must be a whole number above 0"),
        ("max_depth = 7", "max_depth = true", "'max_depth' is True"),
        ('"a:C.f"', '"a:f"', "'a:f' in 'methods'"),
        ("[[rule]]", "[rule]", "write [[rule]], with two brackets"),
        ("[roles]", "[[roles]]", "'roles' is"),
        ("version = 1", "version =", "is not TOML"),
    ],
)  # fmt: skip
def test_a_policy_with_a_mistake_is_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert old in GOOD
    with pytest.raises(PolicyError) as caught:
        read(write(tmp_path, GOOD.replace(old, new, 1)))
    assert problem in str(caught.value)


def test_a_missing_policy_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        read(tmp_path / "none.toml")


def test_a_policy_in_python_is_checked() -> None:
    with pytest.raises(PolicyError, match=r"in rule 1, functions has 'os\.system'"):
        Policy((Rule(("a",), functions=("os.system",)),))


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("a*", "a", True),
        ("*", "", True),
        ("a*c", "abc", True),
        ("a*c", "abcd", False),
        ("*b*", "abc", True),
        ("a", "A", False),
    ],
)
def test_patterns_of_peers_are_exact_but_for_stars(pattern: str, name: str, is_match: bool) -> None:
    assert matches(pattern, name) is is_match
    decisions = Decisions(Policy((Rule((pattern,)),)), "worker0", Audit(None, ""), is_partial=False)
    assert len(decisions.native.rules_for(name)) == 1 + is_match  # the first holds for all


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"enforces": None}, "enforces is None; it must be True or False"),
        ({"require_guard": "no"}, "require_guard is 'no'; it must be True or False"),
        ({"max_depth": -1}, "max_depth is -1; it must be a whole number above 0"),
        ({"max_bytes": "1"}, "max_bytes is '1'; it must be a whole number above 0"),
        ({"audit": "log"}, "audit is 'log'; it must be a pathlib.Path or None"),
        ({"types": "a:B"}, "types is 'a:B'; it must be a tuple of texts"),
        ({"revoked": "trainer1"}, "revoked is 'trainer1'; it must be a tuple of texts"),
        ({"revoked": ("a b",)}, "revoked has 'a b'; an entry is 'trainer0' or '0a:1b'"),
        ({"identities": {"a": ("b",)}}, "it must be a tuple of pairs"),
        ({"identities": (("a b", ("c",)),)}, "identities has 'a b'"),
        ({"identities": (("a", "b"),)}, "identity 'a' is 'b'; it must be a tuple of texts"),
        ({"rules": Rule(("a",))}, "it must be a tuple of Rule"),
        ({"rules": ("a",)}, "rule 1 is 'a'; it must be a Rule"),
        (
            {"rules": (Rule("trainer*"),)},
            "in rule 1, peers is 'trainer*'; it must be a tuple of texts",
        ),
        (
            {"rules": (Rule(("a",), functions="a:f"),)},
            "in rule 1, functions is 'a:f'; it must be a tuple",
        ),
        ({"rules": (Rule(()),)}, "peers is empty in rule 1"),
    ],
)
def test_a_policy_made_in_python_is_honoured_to_the_letter(
    values: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(**{"rules": (), **values})
    assert wrong in str(caught.value)


@pytest.mark.parametrize("policy", ["policy.toml", [1], 7])
def test_only_a_policy_can_be_used(policy: Any) -> None:
    with pytest.raises(TypeError, match=r"use\(\) takes a Policy or None"):
        use(policy)


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        ("builtins:eval", "functions"),
        ("os:system", "functions"),
        ("posix:mkdir", "references"),
        ("importlib:import_module", "functions"),
        ("pickle:loads", "functions"),
        ("torch:load", "functions"),
        ("functools:partial", "types"),
        ("torch.storage:_load_from_bytes", "types"),
        ("torch.distributed.rpc.rref_proxy:_local_invoke", "functions"),
        ("aten::from_file", "operators"),
        ("aten::save", "operators"),
        ("aten::set_", "operators"),
        ("prim::rpc_sync", "operators"),
        ("cProfile:run", "functions"),
        ("logging.config:dictConfig", "functions"),
        ("_posixsubprocess:fork_exec", "functions"),
        ("concurrent.futures:ProcessPoolExecutor", "functions"),
        ("torch.multiprocessing.spawn:spawn", "functions"),
        ("torch.jit._serialization:load", "functions"),
        ("torch.package.package_importer:PackageImporter", "functions"),
        ("numpy:load", "functions"),
        ("joblib:load", "functions"),
        ("pkgutil:resolve_name", "functions"),
        ("torch.distributed.rpc.api:rpc_sync", "functions"),
        ("torch.distributed.rpc:remote", "functions"),
        ("torch.utils.cpp_extension:load", "functions"),
        ("torch.distributed.rpc.internal:deserialize", "functions"),
    ],
)
def test_entries_that_give_everything_away_are_warned_of(entry: str, kind: str) -> None:
    if kind == "types":
        policy = Policy((), types=(entry,))
    else:
        policy = Policy((Rule(("a",), **{kind: (entry,)}),))
    assert any(entry in line for line in words.warnings(policy))


def test_a_plain_policy_has_no_warning() -> None:
    policy = Policy(
        (Rule(("a",), functions=("train:step", "builtins:print"), operators=("aten::add",)),),
        types=("builtins:KeyError",),
    )
    assert words.warnings(policy) == []


def test_a_learned_policy_is_read_as_it_was_written(tmp_path: Path) -> None:
    policy = read(write(tmp_path, GOOD))
    again = read(write(tmp_path, learning.toml(policy, "a test")))
    assert again.rules == policy.rules
    assert again.types == policy.types
    assert learning.missing(again, policy) == []


def test_a_comparison_shows_what_is_missing() -> None:
    wanted = Policy(
        (Rule(("a",), functions=("m:f", "m:g"), operators=("aten::add.Tensor",)),), types=("m:T",)
    )
    policy = Policy((Rule(("*",), functions=("m:f",), operators=("aten::add",)),))
    assert learning.missing(wanted, policy) == ["types: m:T", "functions of a: m:g"]


@pytest.mark.parametrize(
    ("key", "entry"),
    [
        ("functions", "no.such.module:f"),
        ("functions", "os:no_such_function"),
        ("methods", "collections:OrderedDict.no_such_method"),
        ("references", "os:none"),
        ("operators", "aten::none"),
        ("operators", "aten::add.None"),
    ],
)
def test_what_a_worker_does_not_have_is_named_with_its_line(
    tmp_path: Path, key: str, entry: str
) -> None:
    text = f'version = 1\n[[rule]]\npeers = ["a"]\n{key} = [\n    "{entry}",\n]\n'
    policy = read(write(tmp_path, text))
    [problem] = guarding._unknown(policy, "ps")
    start = f"{policy.source}:5: {entry!r} in {key!r} names what worker 'ps' does not have: "
    assert problem.startswith(start)


def test_what_a_worker_has_is_no_problem() -> None:
    rule = Rule(("a",), functions=("os:getpid",), operators=("aten::add", "aten::add.Tensor"))
    assert guarding._unknown(Policy((rule,)), "ps") == []


def test_learning_warns_of_messages_that_every_policy_refuses(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    record = learning.open_record(str(tmp_path), "w")
    native = learning.native_policy(record, "w")
    learning.unpickler(record, native, is_partial=True)(io.BytesIO(pickle.dumps(value, 4))).load()
    warned: list[str] = []
    learning.merge(tmp_path, warned.append)
    [line] = warned
    assert "refuses, whatever the policy lists: it changes a value that it also refers to" in line
