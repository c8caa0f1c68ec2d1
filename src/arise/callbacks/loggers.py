"""Loggers that need a word before they start."""

from __future__ import annotations

import os

from lightning.pytorch.loggers import MLFlowLogger


def mlflow_logger(
    *, save_dir: str, experiment_name: str, run_name: str, tracking_uri: str | None
) -> MLFlowLogger:
    """MLflow at a server, or in the run's folder.

    Args:
        save_dir: Folder for a run without a server.
        experiment_name: MLflow's experiment.
        run_name: Name of the run in it.
        tracking_uri: The server's address; `None` writes files into `save_dir`.
    """
    if tracking_uri is None:
        # MLflow 3 refuses to write files, its only store that needs no database, unless asked to.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return MLFlowLogger(
        save_dir=save_dir,
        experiment_name=experiment_name,
        run_name=run_name,
        tracking_uri=tracking_uri,
    )
