"""Many asynchronous steps while servers, sandboxes and the judge are killed; then the books.

    python benchmarks/soak.py                 # 200 steps: some minutes on two cores
    python benchmarks/soak.py --steps 20 --eta 1 --seed 3

The run is a real one: `train.py`'s own path with the tiny random policy, bubblewrap sandboxes, the
vLLM engine, judge and reflection over HTTP. The vLLM servers are stand-ins that hold the weights
and answer with tokens of no meaning (tests/stub_vllm.py), the judge is one with fixed rules
(tests/stub_judge.py); each is a process of its own, is killed with SIGKILL and started again.
Every few tenths of a second something dies: one of the two servers once the other is in use, a
sandbox, or the judge, which stays away for a second.

At the end the account must be exact, and agree with what was counted elsewhere: the sampler's
draws, and the trajectory records of every step. The program exits with 1 if it does not.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
B, G = 2, 2
CONTEXT = 2048


class Child:
    """A server process that can be killed and started again on its port."""

    def __init__(self, port: int, *command: str) -> None:
        self.port = port
        self._command = (sys.executable, *command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; `is_up` says when it answers."""
        paths = [str(ROOT / "src"), str(ROOT / "tests")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            self._command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def is_up(self, path: str = "/v1/models") -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=1.0):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def version(self) -> int:
        """Version of its weights; -1 before the run has given it any, or if it is away."""
        url = f"http://127.0.0.1:{self.port}/weight_info"
        with (
            suppress(urllib.error.URLError, OSError, ValueError),
            urllib.request.urlopen(url, timeout=1.0) as answer,
        ):
            return int(json.load(answer)["weight_version"])
        return -1


class Chaos(threading.Thread):
    """Kills something every few tenths of a second until it is told to stop."""

    def __init__(self, servers: list[Child], judge: Child, seed: int) -> None:
        super().__init__(daemon=True)
        self.kills: Counter[str] = Counter()
        self._servers, self._judge = servers, judge
        self._chance = random.Random(seed)
        self._over = threading.Event()

    def run(self) -> None:
        """Kill."""
        while not self._over.wait(self._chance.uniform(0.2, 1.0)):
            what = self._chance.choice(("sandbox", "sandbox", "server", "judge"))
            self.kills[what] += getattr(self, f"_kill_{what}")()

    def stop(self) -> None:
        """End it and wait."""
        self._over.set()
        self.join()

    def _kill_sandbox(self) -> bool:
        machines = [p for p in psutil.Process().children() if "bwrap" in p.name()]
        if not machines:
            return False
        with suppress(psutil.NoSuchProcess):
            self._chance.choice(machines).kill()
        return True

    def _kill_server(self) -> bool:
        """One server, if the other has the run's weights: without any, the run rightly ends."""
        victim, other = self._chance.sample(self._servers, 2)
        if min(victim.version(), other.version()) < 0:
            return False
        victim.kill()
        victim.start()
        return True

    def _kill_judge(self) -> bool:
        self._judge.kill()
        self._over.wait(1.0)
        self._judge.start()
        return True


@contextmanager
def children(judge_port: int, server_ports: list[int]) -> Iterator[tuple[list[Child], Child]]:
    """Two servers and a judge, up."""
    servers = [
        Child(port, str(ROOT / "tests" / "stub_vllm.py"), str(port), json.dumps(facts()))
        for port in server_ports
    ]
    judge = Child(judge_port, __file__, "--judge", str(judge_port))
    try:
        for child in (*servers, judge):
            child.start()
        deadline = time.monotonic() + 120
        while not all(child.is_up() for child in (*servers, judge)):
            if time.monotonic() > deadline:
                sys.exit("the stand-in servers did not come up within 120 s")
            time.sleep(0.2)
        yield servers, judge
    finally:
        for child in (*servers, judge):
            child.kill()


def facts() -> dict[str, Any]:
    """What a server says of itself: that it plays the tiny random policy."""
    from arise.inference.vllm.worker import CONFIG_KEYS, plain
    from arise.modules.loading import RandomModel

    config = (
        RandomModel(
            seed=1,
            hidden_size=32,
            num_layers=2,
            num_heads=2,
            intermediate_size=64,
            context_tokens=4096,
        )
        .model()
        .config
    )
    return {
        "dtype": "float32",
        "max_model_len": CONTEXT,
        "logprobs_mode": "processed_logprobs",
        "quantization": None,
        "mla": False,
        "cpu_chunks": False,
        "speculative": False,
        "transfer": None,
        "sleep_mode": False,
        "world_size": 1,
        "config": {key: plain(getattr(config, key, None)) for key in CONFIG_KEYS},
        "delay_s": 0.15,
    }


def overrides(args: argparse.Namespace, judge: Child, servers: list[Child]) -> list[str]:
    """The run."""
    urls = ",".join(f"http://127.0.0.1:{server.port}" for server in servers)
    endpoints = [
        f"{group}{override}"
        for group in ("judge", "reflection")
        for override in (
            "=openai",
            ".model=stub",
            f".base_url=http://127.0.0.1:{judge.port}/v1",
            ".api_key_env=null",
            ".max_tries=2",
            ".backoff_s=0.05",
            ".timeout_s=5",
        )
    ]
    return [
        *("experiment=arise", "debug=tiny", "logger=none", "quiet=true", f"seed={args.seed}"),
        *("engine=vllm", f"engine.urls=[{urls}]", "engine.health_interval_s=0.5"),
        *("algorithm.max_initial_ratio_error=null", f"rollout.context_tokens={CONTEXT}"),
        *(f"rollout.tasks_per_step={B}", f"rollout.rollouts_per_task={G}"),
        *("rollout.deterministic=false", f"rollout.max_staleness={args.eta}"),
        *("rollout.max_lost_iterations=50", "curriculum.quarantine_after=1000"),
        *(f"trainer.max_steps={args.steps}", f"callbacks.checkpoint.every_steps={args.steps}"),
        *("datamodule.generator.count=64", "rubrics.max_pairs=8", *endpoints),
    ]


def problems(run: Path, args: argparse.Namespace) -> list[str]:
    """Compare the account with the sampler's draws and the records; print all of it."""
    import torch

    from arise.runs.records import read_records

    meta = torch.load(run / f"checkpoints/step_{args.steps:06d}/meta.pt", weights_only=True)
    key = next(key for key in meta["callbacks"] if key.startswith("RolloutCallback"))
    account = meta["callbacks"][key]["account"]
    sampler = meta["TaskDataModule"]["curriculum"]["sampler"]
    recorded: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    invalid = verdicts = oldest = 0
    for path in sorted((run / "trajectories").glob("step_*.jsonl.gz")):
        survivors: Counter[str] = Counter()
        for record in read_records(path):
            survivors[record["task_id"]] += "failure" not in record
            failures[record.get("failure", "none")] += 1
            review = record.get("review")
            if review is not None:
                verdicts += len(review["verdicts"])
                invalid += len(review["judged_pair_ids"]) - len(review["verdicts"])
            for turn in record.get("turns", ()):
                oldest = max(oldest, record["iteration"] - min(turn["policy_versions"]))
        recorded["trained"] += sum(count > 0 for count in survivors.values())
        recorded["failed"] += sum(count == 0 for count in survivors.values())
    dropped, failed = sum(account["dropped"].values()), sum(account["failed"].values())
    in_flight, drawn = len(account["in_flight"]), sum(sampler["ledger"]["num_draws"].values())
    print(
        f"groups: {account['num_started']} started = {account['num_trained']} trained + "
        f"{dropped} dropped {account['dropped']} + {failed} failed {account['failed']} + "
        f"{in_flight} in flight"
    )
    print(f"rollouts of the steps by fate: {dict(failures)}; oldest token {oldest} steps")
    print(f"verdicts: {verdicts} valid, {invalid} invalid (none of them counted as a fail)")
    checks = {
        "the sum": account["num_started"] == account["num_trained"] + dropped + failed + in_flight,
        "the sampler's draws": account["num_started"] == drawn,
        "the records' trained groups": account["num_trained"] == recorded["trained"],
        "the records' failed groups": failed == recorded["failed"],
        "the bound on staleness": oldest <= args.eta,
        "groups of all steps": account["num_trained"] + failed == args.steps * B,
    }
    return [name for name, holds in checks.items() if not holds]


def main() -> None:
    from hydra import compose, initialize_config_dir

    from arise import app
    from arise.config import register_schemas
    from arise.inference.vllm.server import free_port

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--eta", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    with (
        tempfile.TemporaryDirectory() as scratch,
        children(free_port(), [free_port(), free_port()]) as (servers, judge),
    ):
        register_schemas()
        with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
            given = overrides(args, judge, servers)
            cfg = compose("train", [*given, f"paths.output_dir={scratch}/out"])
        chaos = Chaos(servers, judge, args.seed)
        chaos.start()
        began = time.perf_counter()
        try:
            app.train(cfg)
        finally:
            chaos.stop()
        seconds = time.perf_counter() - began
        (run,) = (Path(scratch) / "out" / "arise").iterdir()
        print(
            f"{args.steps} steps at η = {args.eta} in {seconds:.0f} s; killed: {dict(chaos.kills)}"
        )
        wrong = problems(run, args)
    left = [process for process in psutil.Process().children() if process.is_running()]
    if left:
        wrong.append(f"processes left behind: {left}")
    print("the account is exact" if not wrong else f"WRONG: {', '.join(wrong)}")
    sys.exit(bool(wrong))


def serve_judge(port: int) -> None:
    """Judge until killed."""
    from stub_judge import StubJudge, varied_answer

    with StubJudge(varied_answer, port=port):
        threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--judge"]:
        serve_judge(int(sys.argv[2]))
    else:
        main()
