"""Reports warn about a machine that was busy or whose cores slept; `--awake` keeps cores awake."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.kit import made_up
from rpc_backends_bench import awake, machine
from rpc_backends_bench.command import command
from rpc_backends_bench.disturbances import disturbances
from rpc_backends_bench.results import BASELINE, Results


def _results(**facts: object) -> Results:
    """Return results of a run of 100 seconds."""
    results = made_up()
    begin, end = "2026-01-01T00:00:00+00:00", "2026-01-01T00:01:40+00:00"
    quiet = {"started": begin, "ended": end, "stolen_before": 5.0, "stolen_after": 5.5}
    results.machine.update({**quiet, **facts})
    return results


def test_an_idle_machine_has_no_disturbances() -> None:
    assert disturbances(_results(busy_before=0.01)) == []


def test_the_share_of_other_programs_is_reported() -> None:
    (text,) = disturbances(_results(busy_before=0.4))

    assert text.startswith("Other programs took 40% of the cores")


def test_stolen_time_is_reported_with_its_share() -> None:
    (text,) = disturbances(_results(stolen_after=10.0))

    assert "gave 5.0% of its time to other machines" in text


def test_old_results_have_no_disturbances() -> None:
    results = made_up()
    results.machine = {"cores": 2, "load_before": 4.0}

    assert disturbances(results) == []


def test_an_unsteady_bare_socket_indicates_sleeping_cores() -> None:
    results = _results()
    points = results.series["latency.noop", None, f"{BASELINE}socket"].points
    points[:] = [(0, turn, 5e-4 if turn % 2 else 4e-5) for turn in range(8)]

    (text,) = disturbances(results)
    assert "40 us in some rounds and 500 us in others" in text
    assert "--awake" in text
    results.machine["awake"] = True
    assert disturbances(results) == []


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="this system has no /proc/stat")
def test_a_computing_thread_makes_the_machine_busy() -> None:
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            pass

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        share = machine.busy_share()
    finally:
        over.set()
        thread.join()

    # The thread takes one core, less the time that it waits for the GIL.
    assert share >= 0.4 / (os.cpu_count() or 1)


def test_awake_holds_device_open_with_latency_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    monkeypatch.setattr(awake, "DEVICE", device)

    with awake.kept_awake():
        assert struct.unpack("=i", device.read_bytes()) == (0,)
        held = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()]
        assert device in held
    assert device not in [
        link.readlink() for link in Path("/proc/self/fd").iterdir() if link.exists()
    ]


def test_awake_fails_before_measuring_without_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awake, "DEVICE", tmp_path / "not_there")
    monkeypatch.setattr("rpc_backends_bench.command._ENVIRON", {})

    ended = CliRunner().invoke(command, ["TENSORPIPE", "--quick", "--awake"])

    assert ended.exit_code == 2
    assert "--awake" in ended.output
    assert "needs Linux and root" in ended.output
