"""Whether a server can play this run's policy: asked once, before anything is generated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arise.errors import ConfigError, InferenceError
from arise.inference.vllm.client import MissingEndpoint, ServerClient, ServerGone
from arise.inference.vllm.wire import PATH
from arise.inference.vllm.worker import EXTENSION

_KEY = "engine.urls: "
_HOW = (
    "start it with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls "
    f"{EXTENSION} (see docs/engines.md)"
)
# What an update of the weights calls.
_CONTROL = ("/pause", "/resume", "/reset_prefix_cache", "/update_weight_version")
_SLEEP = ("/sleep", "/wake_up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What this run needs.

    Attributes:
        config: The policy's configuration by the keys that `arise_describe` reports.
        dtype: `engine.dtype`.
        max_context_tokens: `rollout.context_tokens`.
        transfer: vLLM's weight transfer engine, or `None`.
        sync_dir: Folder that the workers must see, or `None`.
    """

    config: Mapping[str, Any]
    dtype: str
    max_context_tokens: int
    transfer: str | None
    sync_dir: Path | None


async def check_servers(clients: Sequence[ServerClient], wanted: Wanted) -> None:
    """Check all servers of a run at the same time.

    Raises:
        ConfigError: Says of each one that cannot be used why.
    """
    results = await asyncio.gather(
        *(check_server(client, wanted) for client in clients), return_exceptions=True
    )
    problems = [result for result in results if isinstance(result, BaseException)]
    for problem in problems:
        if len(problems) == 1 or not isinstance(problem, ConfigError):
            raise problem
    if problems:
        reasons = "".join(f"\n  {str(problem).removeprefix(_KEY)}" for problem in problems)
        raise ConfigError(f"{_KEY}{len(problems)} of {len(clients)} cannot be used:{reasons}")


async def check_server(client: ServerClient, wanted: Wanted) -> None:
    """Set the client's model name and world size, or say what is wrong.

    Raises:
        ConfigError: One sentence: what is wrong, what was found, what to change.
    """
    try:
        models = await client.get("/v1/models")
        described = await client.rpc("arise_describe")
        await client.get("/weight_info")
        for path in (PATH, *_CONTROL, *(_SLEEP if wanted.transfer == "ipc" else ())):
            await client.require(path)
        client.model = models["data"][0]["id"]
    except ServerGone as error:
        raise ConfigError(f"engine.urls: no vLLM server answers: {error}") from error
    except MissingEndpoint as error:
        raise ConfigError(
            f"engine.urls: {client.url} lacks what training needs ({error}); {_HOW}"
        ) from error
    except (InferenceError, KeyError, IndexError) as error:
        raise ConfigError(f"engine.urls: {client.url} is no vLLM server for this: {error}") from (
            error
        )
    for worker in described:
        for problem in _problems(worker, wanted):
            raise ConfigError(f"engine.urls: {client.url} {problem}")
    client.world_size = int(described[0]["world_size"])
    client.facts = (
        f"{wanted.config.get('model_type')}, {described[0]['dtype']}, "
        f"{described[0]['max_model_len']} tokens, workers: {client.world_size}"
    )
    if wanted.sync_dir is not None:
        seen = await client.rpc("arise_sees", str(wanted.sync_dir))
        if not all(worker["sees"] for worker in seen):
            raise ConfigError(
                f"engine.sync_dir: {client.url} does not see {wanted.sync_dir}; with servers on "
                "other machines it must be a folder that all of them share"
            )
    # Tokens of weights that this run did not give it are stamped as such.
    await client.post("/update_weight_version", {"new_version": "-1"})


def _problems(worker: Mapping[str, Any], wanted: Wanted) -> list[str]:
    """What is wrong with one worker's settings, most telling first."""
    differing = [
        f"{key} {worker['config'].get(key)!r} instead of {value!r}"
        for key, value in wanted.config.items()
        if value is not None and worker["config"].get(key) != value
    ]
    rules = (
        (differing, f"plays another model than model.loader: {', '.join(differing)}"),
        (
            worker["max_model_len"] < wanted.max_context_tokens,
            f"has a context of {worker['max_model_len']} tokens, shorter than "
            f"rollout.context_tokens = {wanted.max_context_tokens}; raise its --max-model-len",
        ),
        (
            worker["logprobs_mode"] != "processed_logprobs",
            f"reports {worker['logprobs_mode']}, which are not those of the distribution sampled "
            "from; start it with --logprobs-mode processed_logprobs",
        ),
        (
            worker["dtype"] != wanted.dtype,
            f"holds {worker['dtype']}, but engine.dtype = {wanted.dtype}",
        ),
        (
            worker["quantization"] is not None or worker["mla"],
            "keeps weights in a form whose checksums cannot be compared with the trainer's "
            f"(quantization {worker['quantization']}, MLA {worker['mla']})",
        ),
        (
            worker["speculative"],
            "guesses tokens ahead (--speculative-config); the draft model is not trained along",
        ),
        (
            worker["cpu_chunks"],
            "cuts prompts into pieces, after which per-request seeds end vLLM's engine on a CPU; "
            "start it with --no-enable-chunked-prefill",
        ),
        (
            wanted.transfer is not None and worker["transfer"] != wanted.transfer,
            f"was started for weight transfer by {worker['transfer']}, but engine.sync = "
            f"{wanted.transfer}; start it with --weight-transfer-config",
        ),
        (
            wanted.transfer == "ipc" and not worker["sleep_mode"],
            "cannot sleep, which engine.sync = ipc needs; start it with --enable-sleep-mode",
        ),
    )
    return [text for wrong, text in rules if wrong]
