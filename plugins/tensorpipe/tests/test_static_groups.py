from __future__ import annotations

import pytest
from support import steps
from support.steps import Meeting
from support.workers import Workers


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_worker_calls_every_other(where: Meeting, size: int) -> None:
    names = [f"worker{rank}" for rank in range(size)]
    with Workers(size, env=where.env) as workers:
        print(workers.run(steps.opened))
        workers.run(steps.join, where.url)
        assert workers.run(steps.members) == [{name: i for i, name in enumerate(names)}] * size
        assert workers.run(steps.call_all) == [{name: name for name in names}] * size
        workers.run(steps.use_rref, names[-1])
        print(workers.run(steps.opened))
        workers.run(steps.leave)
        print(workers.run(steps.opened))
        assert [w.end() for w in workers] == [0] * size
