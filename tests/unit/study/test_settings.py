"""A study's plan: every run composed and checked before the first one starts."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from arise.config import register_schemas
from arise.errors import ConfigError
from arise.study import settings

ROOT = Path(__file__).parents[3]
TASKS = ROOT / "tests" / "data" / "tasks"
SMALL = ["debug=tiny", "datamodule=folder", f"datamodule.corpus={TASKS}", "evaluation=none"]


def study(tmp_path: Path, *overrides: str) -> DictConfig:
    settings.register()
    register_schemas()
    with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base="1.3"):
        return compose("study", [f"output_dir={tmp_path}", *overrides])


def test_the_shipped_study_pairs_all_experiments_on_eight_seeds(tmp_path: Path) -> None:
    cfg = study(tmp_path)
    specs = settings.plan_runs(cfg, configs=ROOT / "configs")
    assert len(specs) == 11 * 8
    shipped = {
        path.relative_to(ROOT / "configs" / "experiment").with_suffix("").as_posix()
        for path in (ROOT / "configs" / "experiment").rglob("*.yaml")
    }
    assert {spec.experiment for spec in specs} == shipped
    # Seed by seed: a study that is not finished is paired all the same.
    assert [spec.seed for spec in specs[:12]] == [1] * 11 + [2]
    assert len({spec.parent for spec in specs}) == len(specs)
    assert all(spec.config.evaluation.attempts_per_task == 3 for spec in specs)
    held_out = {str(spec.config.evaluation.generator) for spec in specs}
    assert len(held_out) == 1
    assert {spec.config.evaluation.generator.seed for spec in specs} == {4}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeds=[]", "seeds"),
        ("seeds=[1,1]", "none twice"),
        ("processes=0", "processes"),
        ("all_fail.rollouts=1", "all_fail.rollouts"),
        ('overrides=["seed=3"]', "sets seed"),
        ('overrides=["algorithm.rubric_weight=2"]', "algorithm.rubric_weight"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    override: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        settings.plan_runs(study(tmp_path, override), configs=ROOT / "configs")


def test_any_folder_name_reaches_the_runs(tmp_path: Path) -> None:
    odd = tmp_path / 'a "b" c=d,e'
    cfg: Any = study(tmp_path, "experiments=[arise]", "seeds=[4]")
    cfg.output_dir, cfg.overrides = str(odd), SMALL
    (spec,) = settings.plan_runs(cfg, configs=ROOT / "configs")
    assert Path(spec.config.paths.output_dir) == (odd / "runs").resolve()
