"""Ranks that die, stop, hang or fail: real processes, killed in every way."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ranks as ranks_program
from arise.errors import ConfigError
from arise.modules.rank_watch import WatchOptions
from arise.modules.vital_signs import OwnSigns, Sign
from runs import ROOT

pytestmark = pytest.mark.slow

# Forked from a process that has imported everything.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ranks"])


class Ranks:
    """Two processes of `tests/ranks.py`, both ready."""

    def __init__(self, folder: Path, scenario: str, **options: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._files = [folder / "0", folder / "1"]
        self.processes = [
            CONTEXT.Process(
                target=ranks_program.main, args=(rank, port, str(file), scenario), kwargs=options
            )
            for rank, file in enumerate(self._files)
        ]
        for process in self.processes:
            process.start()
        deadline = time.monotonic() + 120
        while not all(file.is_file() and "ready" in file.read_text() for file in self._files):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.ready = time.monotonic()

    def said(self, rank: int, timeout_s: float = 60.0) -> str:
        """What a rank wrote until it ended."""
        self.processes[rank].join(timeout_s)
        assert self.processes[rank].exitcode is not None, "it has not ended"
        return self._files[rank].read_text().removeprefix("ready\n")

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture(scope="module", autouse=True)
def _forkserver() -> Iterator[None]:
    """It imports what it is to fork with when it starts, and finds it by the environment only."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        yield


@pytest.fixture
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path, request.param[0], **dict(request.param[1:]))
    yield made
    made.close()


@pytest.mark.parametrize("ranks", [["play"]], indirect=True)
def test_a_rank_that_is_killed_while_rank_0_plays_ends_the_run_with_a_sentence(
    ranks: Ranks,
) -> None:
    time.sleep(1.0)
    first, second = ranks.processes
    ranks.kill(1)
    assert ranks.said(0, timeout_s=10) == (
        f"error: rank 1 (process {second.pid} on {socket.gethostname()}) is gone; it was in the "
        "rollouts of iteration 7\n"
    )
    assert first.exitcode == 1


@pytest.mark.parametrize("ranks", [["play"]], indirect=True)
def test_a_rank_that_waits_for_rollouts_notices_that_rank_0_was_killed(ranks: Ranks) -> None:
    time.sleep(1.0)
    first, second = ranks.processes
    ranks.kill(0)
    said = ranks.said(1, timeout_s=20)
    assert second.exitcode == 1
    assert f"error: rank 0 (process {first.pid} on {socket.gethostname()})" in said
    assert "it was in the rollouts of iteration 7" in said


@pytest.mark.parametrize("ranks", [["play", ("timeout_s", 3.0)]], indirect=True)
def test_a_rank_that_lives_but_says_nothing_counts_as_dead_within_the_configured_time(
    ranks: Ranks,
) -> None:
    time.sleep(1.0)
    ranks.kill(1, signal.SIGSTOP)
    said = ranks.said(0, timeout_s=20)
    assert ranks.processes[0].exitcode == 1
    assert "rank 1" in said
    assert "has given no sign of life for 3 s (callbacks.watch.timeout_s = 3)" in said


@pytest.mark.parametrize("ranks", [["train", ("stall_s", 2.0)]], indirect=True)
def test_a_collective_call_that_hangs_ends_the_run_and_names_phase_and_iteration(
    ranks: Ranks,
) -> None:
    said = ranks.said(0, timeout_s=20)
    assert "the ranks have not come further for 2 s (callbacks.watch.stall_s = 2)" in said
    assert said.count("in the training step of iteration 7, point 1") == 2
    assert ranks.processes[0].exitcode == 1
    ranks.said(1, timeout_s=20)
    assert ranks.processes[1].exitcode == 1


@pytest.mark.parametrize(
    "ranks", [["train", ("collective_s", 2.0), ("timeout_s", 1.0)]], indirect=True
)
def test_the_process_groups_own_time_limit_is_explained_too(ranks: Ranks) -> None:
    said = ranks.said(0, timeout_s=30)
    assert "RankError: rank 0: a collective call failed in the training step of iteration 7" in said
    assert "Timed out" in said


@pytest.mark.parametrize("ranks", [["fail"]], indirect=True)
def test_ranks_that_wait_are_told_why_rank_0_failed(ranks: Ranks) -> None:
    said = ranks.said(1)
    assert "RankError: the run ends because rank 0 failed: no server is left" in said


@pytest.mark.parametrize("ranks", [["play and end"]], indirect=True)
def test_a_late_rank_0_is_waited_for_and_an_orderly_end_alarms_nobody(ranks: Ranks) -> None:
    for rank in (0, 1):
        assert ranks.said(rank) == "sum 2\n"
        assert ranks.processes[rank].exitcode == 0
    assert time.monotonic() - ranks.ready > 2.0


def test_a_reused_process_id_is_another_process() -> None:
    own = OwnSigns().next()
    assert not own.is_gone()
    assert Sign.read(own.write().replace(f'"pid": {own.pid}', '"pid": 999999999')).is_gone()
    earlier = own.started - 100 * random.Random(0).random() - 10
    assert Sign.read(own.write().replace(str(own.started), str(earlier))).is_gone()
    assert not Sign.read(own.write().replace(own.host, "elsewhere")).is_gone()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interval_s": 0.0}, "callbacks.watch.interval_s"),
        ({"stall_s": -1.0}, "callbacks.watch.stall_s"),
        ({"timeout_s": 3.0}, "at least twice"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, float], message: str) -> None:
    options = {"interval_s": 2.0, "timeout_s": 60.0, "stall_s": 900.0, **changes}
    with pytest.raises(ConfigError, match=message):
        WatchOptions(**options)
