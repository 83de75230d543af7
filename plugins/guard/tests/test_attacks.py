"""A malicious member, which every worker has authenticated, sends messages to a worker with a policy."""

from __future__ import annotations

import json
from pathlib import Path

import guard_attacks
import guard_steps
import pytest

from rpc_backends_guard import Policy
from support import steps
from support.workers import Workers

pytestmark = pytest.mark.slow

BACKENDS = ("ZEROMQ", "UCX")
POLICY = """
version = 1
types = ["guard_attacks:Config"]

[roles]
attackers = ["worker1"]

[[rule]]
peers = ["@attackers"]
functions = [
    "guard_attacks:listed",
    "guard_attacks:raise_unlisted",
    "guard_attacks:Counter",
    "guard_attacks:Counter.starting_at",
    "guard_attacks:Counter.slowly",
]
methods = ["guard_attacks:Counter.add"]
references = ["guard_attacks:listed"]
operators = ["aten::add", "aten::sub.Tensor"]
scripts = ["__torch__.guard_steps.listed_script"]
requests = ["fetch", "autograd"]

[[rule]]
peers = ["worker0"]
functions = ["guard_attacks:listed"]

[[rule]]
peers = ["other*"]
functions = ["guard_attacks:for_others"]
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Return a policy file."""
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder in which payloads leave traces."""
    made = tmp_path / "traces"
    made.mkdir()
    return made


def audited(policy: Path) -> list[dict[str, str]]:
    """Return the audit log of a policy."""
    log = policy.with_suffix(".audit.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def traces(folder: Path) -> set[str]:
    """Return the payloads that have run, and forget them."""
    names = {entry.name for entry in folder.iterdir()}
    for entry in folder.iterdir():
        entry.rmdir()
    return names


def test_attacks_run_their_payloads_without_a_guard(folder: Path) -> None:
    """Each attack is one: its payload runs in a worker that has no policy."""
    calls = guard_attacks.attacks(str(folder))
    with Workers(2) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", "ZEROMQ")
        outcomes = workers[1].call(guard_steps.attack, calls)
        ran = traces(folder)
        assert ran == set(calls), {name: outcomes[name] for name in set(calls) - ran}


@pytest.mark.parametrize("backend", BACKENDS)
def test_attacks_are_refused_and_logged(backend: str, policy: Path, folder: Path) -> None:
    """No payload runs, in a call, a remote call or a call under autograd; the worker works on."""
    calls = guard_attacks.attacks(str(folder))
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", backend)
        for step in (guard_steps.attack, guard_steps.attack_remotely, guard_steps.attack_wrapped):
            before = len(audited(policy))
            outcomes = workers[1].call(step, calls)
            assert traces(folder) == set(), step
            for name, outcome in outcomes.items():
                assert "refuses" in outcome, (step, name, outcome)
            log = audited(policy)[before:]
            assert [line["event"] for line in log] == ["refused"] * len(calls), step
            assert {line["peer"] for line in log} == {"worker1"}
        uses(workers)
        workers.run(steps.leave)


def test_a_call_in_the_protocol_of_python_3_14_is_permitted(policy: Path, folder: Path) -> None:
    """Its pickles have protocol 5, and those of older Pythons protocol 4."""
    call = guard_attacks.call(guard_attacks.LISTED, b"K\x01")
    calls = {"4": call, "5": call.replace(b"\x80\x04", b"\x80\x05", 1)}
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", "ZEROMQ")
        outcomes = workers[1].call(guard_steps.attack, calls)
        assert outcomes["4"].startswith("returned")
        assert outcomes["5"] == outcomes["4"]
        workers.run(steps.leave)


def uses(workers: Workers) -> None:
    """Check that what the policy permits works."""
    outcomes = workers[1].call(guard_steps.use)
    assert outcomes == {
        "call": "returned 1",
        "tensors": "returned [tensor([0., 1., 2.]), torch.float16]",
        "parameter": "returned Parameter containing:\ntensor([0., 1., 2.], requires_grad=True)",
        "type": "returned Config(size=3)",
        "reference": "returned 'listed'",
        "class method": "returned 3",
        "operator": "returned tensor([1., 2., 3.])",
        "remote operator": "returned tensor([1., 2., 3.])",
        "fetch": "returned {'a': (1, b'x')}",
        "method": "returned 2",
        "remote method": "returned 4",
        "script": "returned tensor([1., 2., 3.])",
        "remote script": "returned tensor([1., 2., 3.])",
        "exception": outcomes["exception"],
        "autograd": "returned 2.0",
    }
    assert outcomes["exception"].startswith("RuntimeError: ")
    assert "with this text" in outcomes["exception"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_harmful_messages_do_no_harm(backend: str, policy: Path, folder: Path) -> None:
    """Messages that would take memory or end the process are refused, and the worker works on."""
    calls = guard_attacks.harmful()
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", backend)
        before = workers[0].call(guard_steps.memory)
        outcomes = workers[1].call(guard_steps.attack, calls)
        for name, outcome in outcomes.items():
            assert "refuses" in outcome, (name, outcome)
        assert len(audited(policy)) == len(calls)
        # The largest of these messages, and twice what the values of a message may take.
        longest = max(map(len, calls.values()))
        assert workers[0].call(guard_steps.memory) - before < 4 * longest + 2 * Policy(()).max_bytes
        uses(workers)
        workers.run(steps.leave)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rrefs_that_nobody_creates_do_not_stop_a_worker(
    backend: str, policy: Path, folder: Path
) -> None:
    """Each such call is refused and logged, and the peer's listed calls are answered."""
    calls = guard_attacks.forged_rrefs(40)
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", backend)
        workers.run(guard_steps.set_timeout, 2.0)
        outcomes = workers[1].call(guard_steps.attack_at_once, calls)
        for name, outcome in outcomes.items():
            assert "refuses" in outcome, (name, outcome)
        refused = [line["peer"] for line in audited(policy) if line["event"] == "refused"]
        assert refused == ["worker1"] * len(calls)
        assert workers[1].call(guard_steps.call_listed) == "returned 1"


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_attackers_cannot_hold_all_threads(backend: str, policy: Path, folder: Path) -> None:
    """While their calls wait for RRefs that no worker creates, another worker's calls are answered."""
    policy.write_text(POLICY.replace('["worker1"]', '["worker1", "worker2", "worker3"]'))
    with Workers(4, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", backend)
        for sender in (1, 2):
            calls = guard_attacks.forged_rrefs(8, sender)  # together as many as worker0 has threads
            workers[sender].start(guard_steps.attack_at_once, calls)
        workers[0].call(guard_steps.until_rrefs_are_waited_for, 16)
        assert workers[3].call(guard_steps.call_listed) == "returned 1"


@pytest.mark.parametrize("backend", BACKENDS)
def test_methods_wait_for_a_value_that_is_being_made(
    backend: str, policy: Path, folder: Path
) -> None:
    """As without a guard, a call through an RRef may arrive before its value is there."""
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", backend)
        outcomes = workers[1].call(guard_steps.use_before_it_is_made, str(folder.parent))
        assert outcomes == ["returned 2"] * 4
        workers.run(steps.leave)


def test_there_are_sixty_attacks(folder: Path) -> None:
    """Each runs on both backends, and each vulnerability of the field is among them."""
    attacks = [*guard_attacks.attacks(str(folder)), *guard_attacks.harmful()]
    assert len(attacks) == len(set(attacks)) >= 60
    for name in ("2024_5480", "2024_48063", "2025_32434", "2025_32444", "2025_66455", "2026_3059"):
        assert any(f"cve_{name}_" in attack for attack in attacks), name
    assert {"cve_2026_93034_forking_pickler", "shadowray_job"} <= set(attacks)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_permitted_profiler_reaches_the_callee(backend: str, policy: Path, folder: Path) -> None:
    """The wrapper that torch puts around a call under a profiler is read."""
    policy.write_text(POLICY.replace('["fetch", "autograd"]', '["fetch", "autograd", "profiling"]'))
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", backend)
        assert workers[1].call(guard_steps.profile) == "returned 1"


def test_calls_of_a_worker_to_itself_are_not_decided(policy: Path, folder: Path) -> None:
    """They are known by their way, not by the name of their caller."""
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", "ZEROMQ")
        assert "with this text" in workers[0].call(guard_steps.call_self)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_listed_is_refused_by_name(backend: str, policy: Path, folder: Path) -> None:
    """Methods, operators, scripts, references and types of torch's API are refused by their names."""
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", backend)
        outcomes = workers[1].call(guard_steps.misuse, str(folder))
        missing = {
            "method": "does not list 'guard_attacks:Counter.reset' in `methods`",
            "async method": "does not list 'guard_attacks:Counter.reset' in `methods`",
            "attribute": "does not list 'guard_attacks:Counter.__class__' in `methods`",
            "operator": "does not list 'aten::mul.Scalar' in `operators`",
            "overload": "does not list 'aten::sub.Scalar' in `operators`",
            "remote operator": "does not list 'aten::mul.Scalar' in `operators`",
            "script": "scripted' in `scripts`",
            "remote script": "scripted' in `scripts`",
            "reference": "`references` does not list 'pathlib:Path.mkdir'",
            "type": "`types` does not list 'pathlib:PosixPath'",
            "gather": "answers for another worker",
            "profiling": "does not list 'profiling' in `requests`",
        }
        for name, text in missing.items():
            assert text in outcomes[name], (name, outcomes[name])
        assert traces(folder) == set()


@pytest.mark.parametrize("guarded", [False, True])
def test_results_of_a_malicious_callee_are_refused(
    guarded: bool, policy: Path, folder: Path
) -> None:
    """What a callee answers runs nothing at its caller, and does without a guard."""
    pickles = guard_attacks.results(str(folder))
    env = {"RPC_BACKENDS_GUARD": str(policy)} if guarded else {}
    with Workers(2, env=env) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", "ZEROMQ")
        workers[1].call(guard_steps.answer_with, pickles)
        outcomes = workers[0].call(guard_steps.ask, list(pickles))
        ran = traces(folder)
        assert ran == (set() if guarded else set(pickles)), outcomes
        assert (
            not any(outcome.startswith("returned") for outcome in outcomes.values()) or not guarded
        )
        if guarded:
            assert {line["peer"] for line in audited(policy)} == {"worker1"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_answer_in_the_form_of_a_call_is_an_error(
    backend: str, policy: Path, folder: Path
) -> None:
    """The caller gets no value for it, although its pickle begins as that of a call."""
    pickles = {"call": guard_attacks.call(guard_attacks.MKDIR, guard_attacks.text("x"))}
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", backend)
        workers[1].call(guard_steps.answer_with, pickles)
        outcomes = workers[0].call(guard_steps.ask, list(pickles))
        assert outcomes["call"].startswith("RuntimeError"), outcomes
        assert "refuses a result of 'worker1'" in outcomes["call"]


def test_a_policy_that_only_warns_lets_pass_and_logs(policy: Path, folder: Path) -> None:
    """With mode = "warn" a call that is not listed runs, and the log has it."""
    policy.write_text(POLICY.replace("version = 1", 'version = 1\nmode = "warn"'))
    calls = {"mkdir": guard_attacks.attacks(str(folder))["mkdir"]}
    with Workers(2, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", "ZEROMQ")
        workers[1].call(guard_steps.attack, calls)
        assert traces(folder) == {"mkdir"}
        assert {line["event"] for line in audited(policy)} == {"would refuse"}


def test_a_policy_that_only_warns_counts_an_rref_once(policy: Path, folder: Path) -> None:
    """A call that is not listed and brings an RRef of a third worker runs, and the RRef lives on."""
    policy.write_text(POLICY.replace("version = 1", 'version = 1\nmode = "warn"'))
    with Workers(3, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", "ZEROMQ")
        assert workers[1].call(guard_steps.pass_rref) == [
            "returned 1",
            "returned 2",
            "returned 3",
        ]
        workers.run(steps.leave)
        unlisted = [line for line in audited(policy) if line["worker"] == "worker0"]
        assert [line["name"] for line in unlisted] == ["guard_attacks:add_remotely"] * 2


def test_a_partial_guard_counts_an_rref_once(policy: Path, folder: Path) -> None:
    """Also where the agent does not tell a call from a result."""
    policy.write_text(
        POLICY.replace("version = 1", "version = 1\nallow_partial = true")
        .replace('"@attackers"', '"*"')
        .replace("functions = [", 'functions = [\n    "guard_attacks:add_remotely",', 1)
    )
    with Workers(3, env={"RPC_BACKENDS_GUARD": str(policy)}) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store", "TENSORPIPE")
        assert workers[1].call(guard_steps.pass_rref) == [
            "returned 1",
            "returned 2",
            "returned 3",
        ]
        workers.run(steps.leave)


def test_tensorpipe_refuses_a_policy_that_it_cannot_enforce(policy: Path, folder: Path) -> None:
    """TENSORPIPE does not start with a policy, unless the policy permits a partial guard."""
    env = {"RPC_BACKENDS_GUARD": str(policy)}
    with Workers(2, env=env) as workers:
        failures = workers.errors(guard_steps.join, f"file://{folder.parent}/store", "TENSORPIPE")
        for failure in failures:
            assert "cannot be enforced on TENSORPIPE" in failure.text
    policy.write_text(
        POLICY.replace("version = 1", "version = 1\nallow_partial = true").replace(
            '"@attackers"', '"*"'
        )
    )
    calls = guard_attacks.attacks(str(folder))
    with Workers(2, env=env) as workers:
        workers.run(guard_steps.join, f"file://{folder.parent}/store2", "TENSORPIPE")
        outcomes = workers[1].call(guard_steps.attack, calls)
        assert traces(folder) == set(), outcomes
        uses(workers)
