"""Every command and every override that README and docs show, run or checked as far as possible.

Training on the bundled suite is run in small; other configurations are composed and validated
with the paths of the reader's desk; what needs a GPU, the network or hours is listed in
`NOT_RUN` with the reason, and a command that is neither run nor listed fails.
"""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from arise import app, evaluate
from arise.config import register_schemas
from arise.errors import ConfigError
from arise.study import settings
from arise.validation import validate, validate_values
from documented_blocks import PAGES, Command, commands, for_hydra, inline_commands, inline_overrides
from readers_desk import at_desk, write_desk
from runs import ROOT
from stub_judge import StubJudge

CONFIGS = ROOT / "configs"
# Each once, though several pages show it.
COMMANDS = {
    (command.variables, command.words): command
    for page in reversed(PAGES)
    for command in (*commands(page), *inline_commands(page))
}.values()
OVERRIDES = sorted({words for page in PAGES for words in inline_overrides(page)})

# Commands that are not run here, by their beginning.
NOT_RUN = {
    "make demo": "installs, as CI does, and trains by the command that is run here in small",
    "make test": "is this test",
    "python3 -m venv": "makes an environment; `make demo` does it",
    ". .venv": "needs that environment",
    "python -m vllm.entrypoints": "starts a server; test_vllm_proof.py has one started this way",
    "python -m arise.tasks.shellworld.": "plays for minutes; the module is looked up",
    "python -m arise.planning": "test_memory.py compares its table with the page",
    "python tools/gpu_check": "test_gpu_check.py runs it",
    "export HEAD": "needs Slurm",
    "chmod": "test_extending.py does it",
    "python benchmarks/": "measures for minutes; script and options are looked up",
}
SMALL = (
    "quiet=true",
    "datamodule.generator.count=4",
    "rollout.tasks_per_step=2",
    "rollout.rollouts_per_task=2",
    "paths.output_dir=trained",
)
SMALL_EVALUATION = (
    "evaluation.generator.count=2",
    "evaluation.extra.unseen.generator.count=2",
)
# Choices that need something to be run: another machine, key, program or model.
_ELSEWHERE = re.compile(r"^(model|judge|engine|harness|environment|datamodule|scale|rubrics)[.=]")
# What an override that stands alone in a sentence goes with.
_CONTEXT = {
    "rubrics=online": ("curriculum.sampler=uniform",),
    "rubrics=none": ("curriculum.sampler=uniform",),
    "judge=openai": ("judge.model=some-model",),
    "model=endpoint": ("model.model=some-model", "model.base_url=http://some/v1"),
    "harness=tour": ("hydra.searchpath=[file://mine/configs]",),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o755)
    return write_desk(folder)


@pytest.fixture(autouse=True)
def at(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("OPENAI_API_KEY", "of a reader")
    monkeypatch.setenv("ARISE_AGENTS", str(desk))
    register_schemas()
    settings.register()


def composed(root: str, *overrides: str) -> DictConfig:
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        return compose(config_name=root, overrides=list(overrides))


def reason_not_run(command: Command) -> str | None:
    line = " ".join(command.words)
    return next((NOT_RUN[start] for start in NOT_RUN if line.startswith(start)), None)


def train(words: list[str], *, runs: bool) -> None:
    """Run it in small, or compose and validate what needs something from elsewhere."""
    if "--cfg" in words:
        assert "experiment_name: arise" in OmegaConf.to_yaml(composed("train", *words[:-2]))
    elif runs and not any(_ELSEWHERE.match(word) for word in words):
        resumes = "ckpt_path=last" in words
        if resumes and not Path("trained/arise").is_dir():
            train(["experiment=arise"], runs=True)
        evaluation = SMALL_EVALUATION if "experiment=arise" in words else ("evaluation=none",)
        steps = f"trainer.max_steps={2 if resumes else 1}"
        app.train(composed("train", *words, *SMALL, *evaluation, steps))
    else:
        check_training(words)


def check_training(words: list[str]) -> None:
    cfg = composed("train", *for_hydra(words))
    if find_spec("vllm") is None and "urls" in cfg.engine and not cfg.engine.urls:
        with pytest.raises(ConfigError, match="the package vllm is not installed"):
            validate(cfg)
    else:
        validate(cfg)


def play(words: list[str]) -> None:
    """Run an evaluation of the bundled suite in small; else compose and validate."""
    cfg = composed("evaluate", *words)
    if cfg.benchmark.name == "shellworld":
        cfg.benchmark.generator.count, cfg.benchmark.attempts, cfg.quiet = 2, 1, True
        evaluate.evaluate(cfg)
        (report,) = Path("outputs/evaluations/shellworld").glob("shellworld-*/report.md")
        assert "2 tasks" in report.read_text(encoding="utf-8")
    else:
        evaluate.check(cfg)


def plan(words: list[str]) -> None:
    """Compose the study and every run of it."""
    if any("..." in word for word in words):  # runs on GPUs, with what is the reader's own left out
        (listed,) = words
        overrides = [word for word in re.findall(r'"([^"]+)"', listed) if word != "..."]
        overrides = [word.replace("=...", "=path/to/final_model") for word in overrides]
        check_training([*overrides, "judge.model=some-model"])
    else:
        cfg = composed("study", *words)
        cfg.experiments = cfg.experiments[:2]
        assert len(settings.plan_runs(cfg, configs=CONFIGS)) == 2 * len(cfg.seeds)


def module(words: list[str]) -> None:
    """A command line of the package, in this process."""
    name, *arguments = words
    if name == "arise.tasks" and arguments[0] == "annotate":
        with StubJudge(lambda system, user: '{"matches": [], "candidates": []}') as stub:
            arguments[arguments.index("--base-url") + 1] = stub.base_url
            assert importlib.import_module("arise.tasks.__main__").main(arguments) == 0
        return
    if name == "arise.runs" and len(arguments) <= 1:  # named in a sentence, without a run
        rest = {"": "list", "pool": "last", "trajectory": "last 40 some-task 0"}
        arguments += at_desk(rest.get("".join(arguments), "").split(), Path())
    if "--out" in arguments:
        Path(arguments[arguments.index("--out") + 1]).unlink(missing_ok=True)
    run = importlib.import_module(f"{name}.__main__").main
    code = run(arguments)
    differs = name == "arise.rubrics" and arguments[0] == "diff" and "@" in arguments[1]
    assert code == (1 if differs else 0)


def benchmark(words: list[str]) -> None:
    """Its script is there, and has the options and words that are given to it."""
    script, *arguments = words
    text = (ROOT / script).read_text(encoding="utf-8")
    for argument in arguments:
        if not argument.isdecimal():
            assert f'"{argument}"' in text, argument


def make(words: list[str]) -> None:
    subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True)


def pip(words: list[str]) -> None:
    """Extras that it names exist."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[0] == "install"
    (what,) = (word for word in words[1:] if not word.startswith("-"))
    name, _, extras = what.rstrip("]").partition("[")
    assert name in (".", declared["name"])
    assert set(extras.split(",")) <= set(declared["optional-dependencies"])


def tensorboard(words: list[str]) -> None:
    from tensorboard.program import TensorBoard

    TensorBoard().configure(argv=["tensorboard", *words])
    assert Path(words[words.index("--logdir") + 1]).is_dir()


def python(words: list[str], *, runs: bool) -> None:
    scripts: dict[str, Callable[[list[str]], None]] = {
        "train.py": functools.partial(train, runs=runs),
        "evaluate.py": play,
        "study.py": plan,
        "-m": module,
    }
    scripts[words[0]](words[1:])


def torchrun(words: list[str]) -> None:
    """Nodes and processes are those of the configuration, which is composed and validated."""
    options = dict(word.split("=", 1) for word in words if word.startswith("--"))
    own = words[words.index("train.py") + 1 :]
    cfg = composed("train", *own)
    assert int(options["--nnodes"]) == cfg.trainer.num_nodes
    assert int(options["--nproc-per-node"]) == cfg.trainer.devices
    check_training(own)


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "python": functools.partial(python, runs=False),
    "make": make,
    "pip": pip,
    "tensorboard": tensorboard,
    "torchrun": torchrun,
    "srun": lambda words: torchrun(words[1:]),
}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_documented_command(command: Command, desk: Path) -> None:
    words = at_desk(command.words, desk)
    if reason_not_run(command) is None and command.page == "README.md" and words[0] == "python":
        python(words[1:], runs=True)
    elif reason_not_run(command) is None:
        PROGRAMS[words[0]](words[1:])
    elif words[1].startswith("benchmarks/"):
        benchmark(words[1:])
    elif words[1] == "-m" and words[2].startswith("arise."):
        assert find_spec(words[2]) is not None
    elif words[0] == "make":
        make([word for word in words[1:] if "<" not in word])


def test_every_reason_is_needed() -> None:
    lines = [" ".join(command.words) for command in COMMANDS]
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in lines), start


@pytest.mark.parametrize("words", OVERRIDES, ids=" ".join)
def test_documented_override(words: tuple[str, ...], desk: Path) -> None:
    """It composes with some choice of its group, and its values are allowed."""
    own = at_desk(words, desk)
    if own == ["algorithm.lambdda=0.3"]:  # the page shows it as a mistake
        with pytest.raises(HydraException, match="lambdda"):
            composed("train", *own)
        return
    validate_values(first_that_composes(own))


def first_that_composes(words: list[str]) -> DictConfig:
    """With the context that it stands in: another file of its group, or another program."""
    context = [further for word in words for further in _CONTEXT.get(word, ())]
    group = words[0].partition("=")[0].partition(".")[0]
    choices = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
    is_key = "." in words[0].partition("=")[0]
    error: Exception | None = None
    for root in ("train", "evaluate", "study"):
        for choice in ((), *((f"{group}={name}",) for name in choices if is_key)):
            try:
                needed = ("benchmark=shellworld",) if root == "evaluate" else ()
                cfg = composed(root, *needed, *choice, *words, *context)
                OmegaConf.to_container(cfg, resolve=root == "study")
                return cfg
            except HydraException as found:
                error = error or found
    raise AssertionError(words) from error
