"""Evaluate a model: `python evaluate.py benchmark=skillsbench benchmark.path=... harness=kilo`."""

import sys

import hydra
from omegaconf import DictConfig

from arise import cli, evaluate


@hydra.main(version_base="1.3", config_path="configs", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Validate the configuration, then evaluate."""
    evaluate.evaluate(cfg, overrides=sys.argv[1:])


if __name__ == "__main__":
    cli.run(main)
