"""`make gpu-check` without a GPU: the same code at tiny sizes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runs import LAUNCH_VARIABLES, ROOT

pytestmark = pytest.mark.slow


def test_every_check_runs_and_is_good_on_a_cpu() -> None:
    inherited = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    done = subprocess.run(
        [sys.executable, "tools/gpu_check", "--cpu"],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout[done.stdout.index("| check | value | verdict |") :]
    assert "FAILED" not in table
    for measured in (
        "packed attention, relative error",
        "gradient of the head, relative error",
        "step of 120 tokens, offloaded: none, tokens/s",
        "step of 120 tokens, offloaded: both, peak memory",
        "engine against trainer, mean gap",
    ):
        assert f"| {measured} |" in table
