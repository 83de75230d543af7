"""Generated fault schedules, and the shrinking of those that fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from rpc_backends_faults import files
from rpc_backends_faults.explore.places import Place, Places
from rpc_backends_faults.explore.runs import Run
from rpc_backends_faults.explore.schedules import EFFECTS, KINDS, Schedule, fault, generate, read
from rpc_backends_faults.explore.shrinking import Shrunk, exact, shrink

START = '{"t":1.0,"event":"start","worker":"trainer","seed":0,"rules":[],"pid":1}'
PLACES = [
    Place("PYTHON_CALL", f"train.{name}", "trainer", "ps", phase, numbers, numbers)
    for name in ("update", "step")
    for phase, numbers in (("first", (0,)), ("middle", (1, 2, 3)), ("last", (4,)))
]
ONE_RUN = Run(Path("none"), 0, 1.0)


def take(number: int, seed: int = 1, kinds: tuple[str, ...] = KINDS) -> list[Schedule]:
    return list(itertools.islice(generate(sorted(PLACES), kinds, seed), number))


def run_with(folder: Path, *lines: str) -> Run:
    (folder / "logs").mkdir(parents=True)
    (folder / "logs/trainer.jsonl").write_text("\n".join((START, *lines)) + "\n")
    return Run(folder, 0, 1.0)


def request(number: int, function: str = "train.update", faults: str = "[]") -> str:
    return (
        f'{{"t":{number}.5,"event":"request","id":{number},"to":"ps","type":"PYTHON_CALL",'
        f'"function":"{function}","bytes":9,"digest":"a","nth":1,"faults":{faults}}}'
    )


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool], first: Run = ONE_RUN) -> Shrunk:
    state = Shrunk(schedule)
    steps = shrink(state, first, confirmations=3)
    answers: list[bool] = []
    while True:
        try:
            candidates = steps.send(answers) if answers else next(steps)
        except StopIteration:
            return state
        answers = [fails(candidate) for candidate in candidates]


def test_equal_seeds_give_equal_schedules() -> None:
    assert take(200, seed=5) == take(200, seed=5)
    assert take(200, seed=5) != take(200, seed=6)


def test_each_place_gets_a_fault_before_a_second_one() -> None:
    first: list[str] = []
    for schedule in take(len(PLACES)):
        first += [name.partition(" at ")[2] for name in schedule.origin.split(" and ")]

    assert set(first[: len(PLACES)]) == {place.text() for place in PLACES}


def test_the_first_runs_have_one_fault_of_each_effect_at_each_place() -> None:
    """Each run has faults of two streams, because there are two."""
    kinds = ("drop", "fail", "reply_lost", "reply_fail", "duplicate")
    effects = 3
    schedules = take(effects * len(PLACES) // 2, kinds=kinds)

    tried = {
        (kind_group(name.partition(" at ")[0]), name.partition(" at ")[2])
        for schedule in schedules
        for name in schedule.origin.split(" and ")
    }
    assert len(tried) == effects * len(PLACES)


def kind_group(kind: str) -> str:
    return next(effect for effect, kinds in EFFECTS.items() if kind in kinds)


def test_the_faults_of_a_run_are_in_different_streams() -> None:
    for schedule in take(40, kinds=("drop", "duplicate")):
        streams = [dict(rule).get("function") for rule in schedule.faults]
        if schedule.origin.endswith("together"):
            break
        assert len(streams) == len(set(streams))


def test_a_crash_has_a_run_of_its_own() -> None:
    for schedule in take(60, kinds=("crash", "drop", "duplicate")):
        kinds = {dict(rule)["what"] for rule in schedule.faults}
        if schedule.origin.endswith("together"):
            break
        assert "crash" not in kinds or len(schedule.faults) == 1


def test_each_kind_is_generated_in_one_effect() -> None:
    kinds = [kind for group in EFFECTS.values() for kind in group]

    assert sorted(kinds) == sorted(KINDS)


def test_single_faults_try_each_kind_at_each_place() -> None:
    origins = {s.origin for s in take(3 * len(PLACES) * len(KINDS)) if len(s.faults) == 1}

    assert {f"{what} at {place.text()}" for what in KINDS for place in PLACES} <= origins


def test_faults_are_combined_after_single_faults() -> None:
    later = take(2 * len(PLACES) * len(KINDS) + 20)[-20:]

    assert {len(schedule.faults) for schedule in later} == {2, 3}


def test_a_partition_begins_at_the_message_of_its_place() -> None:
    """It counts all messages of the link, and not those of one function."""
    place = Place("PYTHON_CALL", "train.flush", "trainer", "ps", "only", (0,), (9,))
    (rule,) = next(generate([place], ("partition",), 1)).faults

    assert dict(rule)["after"] == 9


def test_a_second_fault_may_act_on_any_message_after_the_first() -> None:
    """So a call that the program only makes after a fault gets faults, too."""
    together = take(3 * len(PLACES) + 100, kinds=("drop",))[-100:]
    faults = [dict(rule) for schedule in together for rule in schedule.faults]

    assert any("function" not in rule and rule["after"] > 0 for rule in faults)


def test_only_the_run_without_faults_says_where_faults_are_injected(tmp_path: Path) -> None:
    places = Places()
    places.learn(run_with(tmp_path / "0", request(1)))
    before = list(itertools.islice(generate(list(places), KINDS, 1), 50))
    places.cover(run_with(tmp_path / "1", request(1), request(2, "train.rejoin")))

    assert list(itertools.islice(generate(list(places), KINDS, 1), 50)) == before
    assert places.others == ["train.rejoin (PYTHON_CALL), trainer to ps"]


def test_calls_that_start_groups_are_no_places(tmp_path: Path) -> None:
    places = Places()
    places.learn(run_with(tmp_path, request(1, "torch.distributed.rpc.api._gather_to_leader")))

    assert list(places) == []


@pytest.mark.parametrize("strategy", ["guided", "random"])
def test_each_schedule_is_a_valid_rule_file(strategy: str, tmp_path: Path) -> None:
    schedules = generate(PLACES, KINDS, 3, strategy)  # type: ignore[arg-type]
    for schedule in itertools.islice(schedules, 200):
        text = schedule.rule_file("a sentence\nand another")
        assert len(files.parse(text, "rules.toml").rules) == len(schedule.faults)
        assert schedule.words()
        (tmp_path / "rules.toml").write_text(text)
        assert read(tmp_path / "rules.toml").faults == schedule.faults


def test_places_are_streams_and_phases_of_a_run(tmp_path: Path) -> None:
    mark = '{"t":3.1,"event":"mark","name":"epoch-1","on":true}'
    run = run_with(tmp_path, request(1), request(2), request(3), mark, request(4, "train.save"))
    places = Places()
    places.learn(run)

    assert [(p.function, p.phase, p.numbers, p.positions) for p in places] == [
        ("train.save", "epoch-1", (0,), (3,)),
        ("train.update", "first", (0,), (0,)),
        ("train.update", "last", (2,), (2,)),
        ("train.update", "middle", (1,), (1,)),
    ]


def test_coverage_counts_faults_that_acted(tmp_path: Path) -> None:
    places = Places()
    places.learn(run_with(tmp_path / "0", request(1), request(2), request(3)))
    dropped = '[{"rule":"drop-1","what":"drop","seconds":0}]'
    places.cover(run_with(tmp_path / "1", request(1), request(2, faults=dropped)))

    assert places.covered() == 1
    assert {place.phase: dict(counts) for place, counts in places.counts.items()} == {
        "middle": {"drop": 1}
    }


def test_shrinking_leaves_the_one_fault_that_matters() -> None:
    schedule = Schedule(tuple(fault("drop", PLACES[1], number, {}) for number in range(9)))
    guilty = schedule.faults[6]

    small = shrunk(schedule, lambda candidate: guilty in candidate.faults)

    assert small.schedule.faults == (guilty,)
    assert (small.failed, small.of, small.complete) == (3, 3, True)


def test_shrinking_keeps_two_faults_that_only_fail_together() -> None:
    schedule = Schedule(tuple(fault("drop", PLACES[1], number, {}) for number in range(12)))
    pair = {schedule.faults[2], schedule.faults[11]}

    small = shrunk(schedule, lambda candidate: pair <= set(candidate.faults))

    assert set(small.schedule.faults) == pair


def test_shrinking_moves_a_fault_to_the_first_message() -> None:
    schedule = Schedule((fault("drop", PLACES[1], 3, {}),))

    small = shrunk(schedule, lambda candidate: bool(candidate.faults))

    assert small.schedule.faults == (fault("drop", PLACES[1], 0, {}),)


def test_a_random_rule_becomes_the_faults_of_its_log(tmp_path: Path) -> None:
    acted = '[{"rule":"drop-1","what":"drop","seconds":0}]'
    run = run_with(tmp_path, request(1), request(2, faults=acted), request(3, faults=acted))
    anywhere = Schedule(((("what", "drop"), ("probability", 0.1)),), seed=4)

    single = exact(run, anywhere)

    assert single is not None
    assert single.faults == (
        fault("drop", PLACES[1], 1, {}),
        fault("drop", PLACES[1], 2, {}),
    )


def test_a_link_with_jitter_and_another_fault_are_shrunk(tmp_path: Path) -> None:
    acted = '[{"rule":"drop-2","what":"drop","seconds":0}]'
    run = run_with(tmp_path, request(1), request(2, faults=acted))
    jitter, drop = fault("jitter", PLACES[1], 0, {}), fault("drop", PLACES[1], 1, {})

    small = shrunk(Schedule((jitter, drop)), lambda candidate: drop in candidate.faults, run)

    assert small.schedule.faults == (drop,)


def test_a_failure_that_does_not_repeat_says_so() -> None:
    small = shrunk(Schedule((fault("drop", PLACES[0], 0, {}),)), lambda candidate: False)

    assert small.text() == "fails in 0 of 3 runs"
