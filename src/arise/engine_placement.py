"""Who plays where, from the configuration: servers that are asked for, devices that are shared.

Used to refuse what cannot be before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def placement_problems(cfg: Any) -> Iterator[str]:
    """What contradicts itself in the placement of vLLM servers, one sentence each."""
    engine, trainer = cfg.engine, cfg.trainer
    if "urls" not in engine:
        return
    asked = engine.num_servers
    if asked is not None and len(engine.urls) < asked and (engine.urls or asked > 1):
        yield (
            f"engine.num_servers = {asked} servers are asked for, but engine.urls names "
            f"{len(engine.urls)}; start them and give their addresses: "
            f"engine.urls=[{','.join(f'http://HOST{n}:8000' for n in range(1, asked + 1))}]"
        )
    if engine.sync == "ipc" and (engine.urls or trainer.devices * trainer.num_nodes != 1):
        yield (
            "engine.sync = ipc is for one trainer process and one server started by it, which take "
            "turns on a device; use nccl or disk"
        )
    if not engine.urls and trainer.accelerator == "gpu":
        yield from _shared_devices(engine, trainer)


def _shared_devices(engine: Any, trainer: Any) -> Iterator[str]:
    """A server of our own beside a trainer on the same node."""
    if engine.sync == "ipc":
        if engine.kv_cache_gib is None:
            yield (
                "engine.kv_cache_gib = null lets vLLM take nearly the whole device, but engine.sync"
                " = ipc shares it with the trainer; give a size, such as engine.kv_cache_gib=20"
            )
        return
    if engine.devices is None:
        if engine.sync == "nccl":
            yield (
                "engine.sync = nccl needs devices apart from the trainer's: set engine.devices, "
                "or give running servers in engine.urls"
            )
        return
    if not isinstance(trainer.devices, int):
        return
    shared = [device for device in engine.devices if device < trainer.devices]
    if shared:
        yield (
            f"engine.devices = {list(engine.devices)} and trainer.devices = {trainer.devices} both "
            f"use {', '.join(f'cuda:{device}' for device in shared)}; the trainer takes the first "
            f"{trainer.devices}, so give the engine others"
        )
