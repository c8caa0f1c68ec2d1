"""A worker that can be made to fail the way real ones did; runs inside a real vLLM server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arise.inference.vllm.worker import WeightWorker, read_folder

FAULTY_WORKER = "vllm_faults.FaultyWorker"


class FaultyWorker(WeightWorker):
    """The project's worker, plus updates that go wrong in one way each."""

    def faulty_reload(self: Any, folder: str) -> dict[str, Any]:
        """vLLM's own reload and nothing after it: on the CPU a tied head stays as it was."""
        self.reload_weights(weights_iterator=read_folder(Path(folder)))
        return {}

    def faulty_load_without(self: Any, folder: str, name: str) -> dict[str, Any]:
        """One tensor gets lost; vLLM only writes a warning into its log."""
        pairs = (pair for pair in read_folder(Path(folder)) if pair[0] != name)
        self.reload_weights(weights_iterator=pairs)
        self.arise_map.renew_derived()
        return {}

    def faulty_version(self: Any, version: str) -> dict[str, Any]:
        """Claim a version."""
        self.arise_version = int(version)
        return {}
