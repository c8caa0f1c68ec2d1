"""What this project adds to a vLLM worker: `--worker-extension-cls` with `WeightWorker`.

vLLM mixes the class into its worker, in each of the server's processes that hold weights; the
trainer calls the methods through `/collective_rpc`. Arguments are strings and results are plain
dictionaries, because they travel as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arise.inference.vllm.model_map import ModelMap

EXTENSION = "arise.inference.vllm.worker.WeightWorker"

# What must be equal for a server to be able to play the trainer's model.
CONFIG_KEYS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "rms_norm_eps",
    "rope_parameters",
)


class WeightWorker:
    """Loads the trainer's weights and reports what the model then computes with."""

    def arise_describe(self: Any) -> dict[str, Any]:
        """The server's settings that decide whether it can play this run's policy."""
        config = self.vllm_config
        model = config.model_config
        text = model.hf_config.get_text_config()
        return {
            "dtype": str(model.dtype).removeprefix("torch."),
            "max_model_len": model.max_model_len,
            "logprobs_mode": model.logprobs_mode,
            "quantization": model.quantization,
            "mla": bool(model.use_mla),
            "cpu_chunks": self.device.type == "cpu"
            and bool(config.scheduler_config.enable_chunked_prefill),
            "speculative": config.speculative_config is not None,
            "transfer": getattr(config.weight_transfer_config, "backend", None),
            "sleep_mode": bool(model.enable_sleep_mode),
            "world_size": config.parallel_config.world_size_across_dp,
            "config": {key: plain(getattr(text, key, None)) for key in CONFIG_KEYS},
            "version": getattr(self, "arise_version", -1),
        }

    def arise_sees(self, path: str) -> dict[str, Any]:
        """Whether a folder of the trainer's is there for this worker too."""
        return {"sees": Path(path).exists()}

    def arise_learn(self: Any, tensors: str) -> dict[str, Any]:
        """Find out where each of the trainer's tensors goes.

        Args:
            tensors: JSON, a list of [name, shape, dtype].
        """
        self.arise_map = ModelMap(self.get_model(), self.vllm_config, json.loads(tensors))
        return self.arise_map.summary()

    def arise_load(self: Any, folder: str) -> dict[str, Any]:
        """Take over the tensors in a folder's safetensors files."""
        count = 0

        def counted() -> Iterator[tuple[str, Tensor]]:
            nonlocal count
            for pair in read_folder(Path(folder)):
                count += 1
                yield pair

        self.reload_weights(weights_iterator=counted())
        return {"num_tensors": count}

    def arise_finish(self: Any, version: str) -> dict[str, Any]:
        """After the tensors, whoever brought them: renew what is derived, and take the version."""
        self.arise_map.renew_derived()
        self.arise_version = int(version)
        return {"version": self.arise_version}

    def arise_report(self: Any) -> dict[str, Any]:
        """Version and fingerprints, from the elements that the model computes with."""
        return {"version": getattr(self, "arise_version", -1), **self.arise_map.report()}


def read_folder(folder: Path) -> Iterable[tuple[str, Tensor]]:
    """The tensors of all safetensors files in a folder."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                yield name, opened.get_tensor(name)


def plain(value: Any) -> Any:
    """A configuration value as JSON."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in sorted(value.items())}
    return str(value) if isinstance(value, torch.dtype) else value
