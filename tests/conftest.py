"""Fixtures of all tests."""

import logging

import pytest


@pytest.fixture(autouse=True)
def enabled_loggers() -> None:
    """Undo what an earlier test's command line did to loggers: Hydra may disable existing ones."""
    for name, logger in logging.Logger.manager.loggerDict.items():
        if name.partition(".")[0] == "arise" and isinstance(logger, logging.Logger):
            logger.disabled = False
            logger.propagate = True
    logging.getLogger("arise").setLevel(logging.INFO)
