"""`engine=auto`: vLLM where it can show what it is good for."""

from __future__ import annotations

import logging
from collections.abc import Collection
from importlib.util import find_spec

from arise.errors import ConfigError

logger = logging.getLogger(__name__)


def best_engine(candidates: Collection[str]) -> str:
    """The name of the engine to use on this machine.

    On a GPU vLLM is many times faster; without one, the engine in this process is as fast for
    small models, starts at once and repeats bit for bit.

    Args:
        candidates: Names of configured engines, `vllm` and `transformers`.

    Raises:
        ConfigError: None of them can be used.
    """
    import torch

    reasons = []
    if find_spec("vllm") is None:
        reasons.append("the package vllm is not installed")
    if not torch.cuda.is_available():
        reasons.append("there is no CUDA device")
    if "vllm" in candidates and not reasons:
        logger.info("engine=auto: using vllm")
        return "vllm"
    if "transformers" in candidates:
        logger.info("engine=auto: using transformers, because %s", " and ".join(reasons))
        return "transformers"
    raise ConfigError(
        f"engine.candidates = {sorted(candidates)} has no engine for this machine: "
        f"{' and '.join(reasons) or 'vllm is not among them'}; add transformers"
    )
