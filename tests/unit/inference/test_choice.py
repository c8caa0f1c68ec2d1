"""Which engine a configuration means, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from arise.assembly import build_engine
from arise.errors import ConfigError
from arise.inference import auto
from arise.inference.auto import best_engine
from arise.inference.transformers import TransformersEngine
from arise.inference.vllm.engine import VLLMEngine
from arise.validation import validate
from engines import LOADER
from runs import compose_config

URL = "engine.urls=[http://127.0.0.1:9]"


@pytest.mark.parametrize(
    ("engine", "kind"), [("transformers", TransformersEngine), ("vllm", VLLMEngine)]
)
def test_an_engine_is_built_from_its_file(engine: str, kind: type, tmp_path: Path) -> None:
    cfg = compose_config("experiment=arise", f"engine={engine}")
    built = build_engine(cfg, model=LOADER.empty_model, folder=tmp_path)
    assert isinstance(built, kind)
    assert built.max_context_tokens == cfg.rollout.context_tokens


def test_auto_takes_vllm_where_it_is_installed_and_a_gpu_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = compose_config("experiment=arise", "engine=auto")
    for has_gpu, kind in ((False, TransformersEngine), (True, VLLMEngine)):
        monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
        monkeypatch.setattr(auto, "find_spec", lambda name: name)
        cfg.engine.candidates.transformers.device = "cpu"
        assert isinstance(build_engine(cfg, model=LOADER.empty_model, folder=tmp_path), kind)
    monkeypatch.setattr(auto, "find_spec", lambda name: None)
    assert best_engine(["vllm", "transformers"]) == "transformers"
    with pytest.raises(ConfigError, match="the package vllm is not installed; add transformers"):
        best_engine(["vllm"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.urls=[10.0.0.1:8000]"], "must start with http:// or https://"),
        ([URL.replace("]", ",http://127.0.0.1:9]")], "names a server twice"),
        ([URL, "engine.sync=ipc"], "engine.sync = ipc is for one trainer process"),
        ([URL, "engine.sync=carrier"], "engine.sync = 'carrier' is not one of auto, disk"),
        ([URL, "engine.dtype=int8"], "engine.dtype = 'int8' is not one of float32"),
        ([URL, "engine.kv_cache_gib=0"], r"engine.kv_cache_gib = 0.0 is not in \(0, inf\)"),
        ([URL, "engine.start_timeout_s=0"], "engine.start_timeout_s = 0.0 is not in"),
        ([URL, "engine.health_interval_s=-1"], "engine.health_interval_s = -1.0 is not in"),
        ([URL, "engine.api_key_env=NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_impossible_settings_are_refused_before_anything_starts(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(compose_config("experiment=arise", "engine=vllm", *overrides))


def test_vllm_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arise.validation.find_spec", lambda name: None if name == "vllm" else name)
    with pytest.raises(ConfigError, match=r"pip install 'arise\[vllm\]'"):
        validate(compose_config("experiment=arise", "engine=vllm"))
    validate(compose_config("experiment=arise", "engine=vllm", URL))
