"""Experiments times seeds, and a report: `python study.py`. Settings: configs/study.yaml."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from arise import cli
from arise.study import settings


@hydra.main(version_base="1.3", config_path="configs", config_name="study")
def main(cfg: DictConfig) -> None:
    """Plan, train, probe, report."""
    from arise.study.conduct import conduct

    conduct(cfg, root=Path(__file__).resolve().parent)


if __name__ == "__main__":
    settings.register()
    cli.run(main)
