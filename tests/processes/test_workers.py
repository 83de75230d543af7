"""The harness itself."""

from __future__ import annotations

import os
import signal
import time

import pytest
from support.workers import Me, WorkerError, Workers


def identity(me: Me) -> tuple[int, str, int]:
    return me.index, me.name, os.getpid()


def fail_on_the_second(me: Me) -> str:
    if me.index == 1:
        raise KeyError("the second fails")
    return "fine"


def sleep(me: Me, seconds: float) -> None:
    me.tell("sleeping")
    time.sleep(seconds)


def remember(me: Me, value: int) -> int:
    me.memory["sum"] = me.memory.get("sum", 0) + value
    return me.memory["sum"]


def variable(me: Me) -> str | None:
    return os.environ.get("SOME_VARIABLE")


def threads(me: Me) -> int:
    return len(os.listdir("/proc/self/task"))


def test_all(): 
    with Workers(3, env={"SOME_VARIABLE": "x"}) as ws:
        r = ws.run(identity)
        assert [x[:2] for x in r] == [(i, f"worker{i}") for i in range(3)]
        assert ws.run(threads) == [1, 1, 1]
        assert ws.run(variable) == ["x"] * 3
        with pytest.raises(WorkerError, match="the second fails") as e:
            ws.run(fail_on_the_second)
        print(e.value)
        s = ws[0].start(sleep, 100)
        assert s.news() == "sleeping"
        ws[0].interrupt()
        assert s.error().kinds[0] == "KeyboardInterrupt"
        s = ws[0].start(sleep, 100)
        with pytest.raises(WorkerError) as e:
            s.result(1)
        print(e.value)
        ws[1].kill()
        assert ws[1].status == -signal.SIGKILL
        assert ws[2].end() == 0


def test_fresh(): 
    with Workers(1, env={"SOME_VARIABLE": "x"}, fresh=True) as ws:
        assert ws.run(variable) == ["x"] * 1
