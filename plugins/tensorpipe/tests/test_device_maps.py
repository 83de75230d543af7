"""Inconsistent device maps: all affected workers get the same error, and no worker waits.

The devices named here exist on no machine, so these tests need no accelerator.
"""

from __future__ import annotations

from typing import Any

import pytest

from support import steps
from support.steps import AT_ONCE, Meeting
from support.workers import Workers

pytestmark = pytest.mark.slow

# The wrong options of one worker, and the error that all must get.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "source device": (
        {"device_maps": {"worker0": {"cuda:100": "cuda:100"}}},
        "Node worker1 has source devices with invalid indices in its device map for worker0",
    ),
    "target device": (
        {"device_maps": {"worker0": {"cpu": "cuda:100"}}},
        "Node worker1 has target devices with invalid indices in its device map for worker0",
    ),
    "target worker": (
        {"device_maps": {"nobody": {"cpu": "cpu"}}},
        "Node worker1 has invalid target node names in its device maps",
    ),
    "device": (
        {"devices": ["cuda:100"]},
        "Node worker1 has devices with invalid indices",
    ),
    "duplicate devices": (
        {"devices": ["cuda:0", "cuda:0"]},
        "Node worker1 has duplicated devices",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_every_worker_of_a_static_group_gets_the_same_error_at_once(
    wrong: str, where: Meeting
) -> None:
    options, text = WRONG[wrong]
    with Workers(3, env=where.env) as workers:
        failures = workers.errors(steps.join, where.url, only={1: options})

        assert {failure.kinds[0] for failure in failures} == {"ValueError"}
        assert len({failure.text for failure in failures}) == 1
        assert failures[0].text.startswith(text)
        assert max(failure.seconds for failure in failures) < AT_ONCE
        assert workers.run(steps.is_running) == [False] * 3


def test_the_same_processes_can_form_a_group_afterwards(where: Meeting) -> None:
    with Workers(3, env=where.env) as workers:
        workers.errors(steps.join, where.url, only={1: {"devices": ["cuda:100"]}})

        workers.run(steps.join, where.url)

        assert (
            workers.run(steps.call_all)
            == [{"worker0": "worker0", "worker1": "worker1", "worker2": "worker2"}] * 3
        )
        workers.run(steps.leave)


# In a dynamic group, a map to a worker that has not joined yet is not an error.
@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if wrong != "target worker"])
def test_only_the_joiner_of_a_dynamic_group_gets_the_error(wrong: str, where: Meeting) -> None:
    """With stock torch the joiner hangs, and so do all later joiners."""
    options, text = WRONG[wrong]
    with Workers(3, env=where.env) as workers:
        workers[0].call(steps.join_dynamic, where.url)

        failure = workers[1].start(steps.join_dynamic, where.url, **options).error()

        assert failure.kinds[0] == "ValueError"
        assert failure.text.startswith(text)
        assert failure.seconds < AT_ONCE
        assert not workers[1].call(steps.is_running)
        assert workers[0].call(steps.members) == {"worker0": 0}

        # The group still works: another worker joins, and so does this one with correct options.
        workers[2].call(steps.join_dynamic, where.url)
        workers[1].call(steps.join_dynamic, where.url)

        everybody = {name: name for name in ("worker0", "worker1", "worker2")}
        assert workers.run(steps.call_all) == [everybody] * 3
        workers.run(steps.leave)


def test_a_map_that_a_later_joiner_contradicts_fails_the_joiner(where: Meeting) -> None:
    """The map can only be checked when its target joins. The joiner fails, not the existing member."""
    with Workers(2, env=where.env) as workers:
        workers[0].call(steps.join_dynamic, where.url, device_maps={"worker1": {"cpu": "cuda:100"}})

        failure = workers[1].start(steps.join_dynamic, where.url).error()

        assert failure.text.startswith("Node worker0 has target devices with invalid indices")
        assert workers[0].call(steps.call_all) == {"worker0": "worker0"}
        workers[1].call(steps.join_dynamic, where.url, name="another")
        assert workers[0].call(steps.members) == {"worker0": 0, "another": 1}
        workers.run(steps.leave)
