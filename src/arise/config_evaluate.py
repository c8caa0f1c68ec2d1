"""Schemas of an evaluation; see `arise.config` for those of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING


@dataclass
class EvaluateRoot:
    """The whole configuration; see `configs/evaluate.yaml`."""

    name: str = MISSING
    seed: int = MISSING
    checkpoint: str | None = MISSING
    context_tokens: int | None = MISSING
    max_in_flight: int = MISSING
    deterministic: bool = MISSING
    resume: bool = MISSING
    retry_errors: bool = MISSING
    quiet: bool = MISSING
    model: Any = MISSING
    engine: Any = MISSING
    environment: Any = MISSING
    harness: Any = MISSING
    benchmark: Any = MISSING
    paths: Any = MISSING


@dataclass
class Benchmark:
    """Tasks and settings; see `configs/benchmark/`."""

    name: str = MISSING
    path: Any = MISSING
    generator: dict[str, Any] | None = MISSING
    attempts: int = MISSING
    temperature: float = MISSING
    top_p: float = MISSING
    top_k: int = MISSING
    agent_timeout_s: float | None = MISSING
    default_timeout_s: float = MISSING
    harness: dict[str, Any] = MISSING


@dataclass
class EndpointModel:
    """A model behind an endpoint; see `configs/model/endpoint.yaml`."""

    name: str = MISSING
    model: str = MISSING
    base_url: str = MISSING
    api_key_env: str | None = MISSING
    extra_body: dict[str, Any] = MISSING
    timeout_s: float = MISSING
    max_tries: int = MISSING
    max_concurrency: int = MISSING


EVALUATE_SCHEMAS: tuple[tuple[str | None, str, type], ...] = (
    (None, "evaluate_schema", EvaluateRoot),
    ("benchmark", "benchmark_schema", Benchmark),
    ("model", "endpoint_schema", EndpointModel),
)
