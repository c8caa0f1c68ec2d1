"""Schemas of the `engine` and `environment` groups; see `arise.config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING


@dataclass
class TransformersEngine:
    """The in-process engine; see `configs/engine/transformers.yaml`."""

    _target_: str = MISSING
    device: str = MISSING
    dtype: str = MISSING
    max_sessions: int = MISSING


@dataclass
class VLLMEngine:
    """vLLM servers; see `configs/engine/vllm.yaml`."""

    _target_: str = MISSING
    urls: list[str] = MISSING
    num_servers: int | None = MISSING
    dtype: str = MISSING
    sync: str = MISSING
    sync_dir: str | None = MISSING
    devices: Any = MISSING
    kv_cache_gib: float | None = MISSING
    enforce_eager: bool = MISSING
    args: list[str] = MISSING
    start_timeout_s: float = MISSING
    request_timeout_s: float = MISSING
    health_interval_s: float = MISSING
    dead_after_s: float = MISSING
    max_outage_s: float = MISSING
    max_restarts: int = MISSING
    api_key_env: str | None = MISSING


@dataclass
class AutoEngine:
    """The better engine on this machine; see `configs/engine/auto.yaml`."""

    candidates: dict[str, Any] = MISSING


@dataclass
class Bubblewrap:
    """The unprivileged sandbox; see `configs/environment/bubblewrap.yaml`."""

    _target_: str = MISSING
    sandbox_uid: int = MISSING
    storage_mb: int = MISSING
    memory_mb: int = MISSING
    max_processes: int = MISSING
    max_output_bytes: int = MISSING
    start_timeout_s: float = MISSING


@dataclass
class Docker:
    """One container per episode; see `configs/environment/docker.yaml`."""

    _target_: str = MISSING
    hosts: list[str] = MISSING
    cpus: float | None = MISSING
    memory_mb: int = MISSING
    storage_mb: int = MISSING
    max_processes: int = MISSING
    max_output_bytes: int = MISSING
    start_timeout_s: float = MISSING
    start_concurrency: int = MISSING
    call_timeout_s: float = MISSING
    network: str | None = MISSING
    network_by_default: bool = MISSING
    build_network: str = MISSING
    pull: bool = MISSING
    grading: str = MISSING
    disk_check_interval_s: float = MISSING


@dataclass
class AutoEnvironment:
    """The first kind of sandbox that works; see `configs/environment/auto.yaml`."""

    _target_: str = MISSING
    candidates: dict[str, Any] = MISSING


ENGINE_SCHEMAS: tuple[tuple[str, str, type], ...] = (
    ("engine", "transformers_schema", TransformersEngine),
    ("engine", "vllm_schema", VLLMEngine),
    ("engine", "auto_schema", AutoEngine),
    ("environment", "bubblewrap_schema", Bubblewrap),
    ("environment", "docker_schema", Docker),
    ("environment", "auto_schema", AutoEnvironment),
)
