"""Train a policy: `python train.py experiment=arise`. Settings live in configs/."""

import sys

import hydra
from omegaconf import DictConfig

from arise import app, cli


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(cfg: DictConfig) -> None:
    """Validate the configuration, then train."""
    app.train(cfg, overrides=sys.argv[1:])


if __name__ == "__main__":
    cli.run(main)
