"""vLLM's transfer engines on real GPUs: `make gpu-check` runs these where there are any."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from arise.inference.base import Completion
from arise.inference.weights import fingerprints, verify
from engines import policy, prompt_of, request, scored, vllm_engine

pytestmark = [pytest.mark.gpu, pytest.mark.vllm, pytest.mark.slow]

STEP = 5e-8
TOLERANCE = 2e-3


def moved(weights: dict[str, torch.Tensor], step: float) -> dict[str, torch.Tensor]:
    """Every weight after a step of this size."""
    return {name: tensor + step * torch.sign(tensor + 0.5) for name, tensor in weights.items()}


@pytest.mark.parametrize(
    ("sync", "devices"),
    [
        pytest.param("ipc", None, id="one device in turns"),
        pytest.param(
            "nccl",
            [1],
            id="two devices",
            marks=pytest.mark.skipif(
                torch.cuda.device_count() < 2, reason="needs two CUDA devices"
            ),
        ),
    ],
)
def test_weights_arrive_are_proven_and_played(
    sync: str, devices: list[int] | None, tmp_path: Path
) -> None:
    """Three versions: as loaded, after a step that log-probabilities cannot see, after a large one.

    Between them the server rests; with IPC it then sleeps and gives its memory back.
    """
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    pytest.importorskip("vllm")
    model = policy().cuda()
    first = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    versions = [first, moved(first, STEP), moved(first, 1e-3)]
    engine = vllm_engine(sync=sync, devices=devices, log_path=tmp_path / "vllm.log")
    prompts = [prompt_of(20 + 7 * row, row) for row in range(4)]

    async def work() -> list[list[Completion]]:
        await engine.start()
        try:
            answers = []
            for version, weights in enumerate(versions):
                report = await engine.load_weights(weights, version=version)
                verify(fingerprints(weights, dtype=engine.dtype), report, version=version)
                answers.append(
                    await engine.generate([request(row, p) for row, p in enumerate(prompts)])
                )
                free_before = torch.cuda.mem_get_info()[0]
                await engine.rest()
                if sync == "ipc":
                    assert torch.cuda.mem_get_info()[0] > free_before
            return answers
        finally:
            await engine.stop()

    for version, answers in enumerate(asyncio.run(work())):
        state: dict[str, Any] = {name: t.cpu() for name, t in versions[version].items()}
        plain = policy()
        plain.load_state_dict(state)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert set(answer.policy_versions) == {version}
            expected = scored(plain, prompt, answer.token_ids)
            assert answer.logprobs == pytest.approx(expected, abs=TOLERANCE)
