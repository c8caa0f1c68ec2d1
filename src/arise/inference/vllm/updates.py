"""New weights on all servers: pause, bring, take the version, forget old keys, prove, go on.

Requests in flight are kept. Their keys are computed afresh with the new weights, so every token
has the log-probability that the policy of its version gives it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from arise.errors import InferenceError, WeightSyncError
from arise.inference.base import WeightReport
from arise.inference.vllm.client import ServerClient, ServerGone
from arise.inference.vllm.pool import ServerPool
from arise.inference.vllm.sync import WeightSync
from arise.inference.weights import canonical_name, wrap

logger = logging.getLogger(__name__)

T = TypeVar("T")
_NUM_SHOWN = 5


class WeightUpdates:
    """Keeps all servers of a pool at one policy version.

    Args:
        pool: The servers; one that is lost on the way is left out.
        sync: Brings tensors.
        dtype: What the servers hold.
    """

    def __init__(self, pool: ServerPool, sync: WeightSync, dtype: torch.dtype) -> None:
        self._pool = pool
        self._sync = sync
        self._dtype = dtype
        self._lock = asyncio.Lock()
        self._learned: set[str] = set()
        self._spec: list[tuple[str, list[int], str]] = []
        self._partner: dict[str, str] = {}
        self._last: WeightReport | None = None
        self._are_asleep = False

    async def push(self, weights: Mapping[str, Tensor], *, version: int) -> WeightReport:
        """Bring all servers to a version.

        Args:
            weights: Full tensors by (possibly wrapped) name.
            version: Policy version.

        Returns:
            What every server then holds.

        Raises:
            WeightSyncError: The model does not take the tensors one for one, servers differ, or a
                transport failed.
            InferenceError: No server is left.
        """
        async with self._lock:
            try:
                self._last = await self._push(weights, version)
            except ServerGone:
                raise
            except InferenceError as error:
                raise WeightSyncError(f"version {version} did not arrive: {error}") from error
            return self._last

    async def _push(self, weights: Mapping[str, Tensor], version: int) -> WeightReport:
        tensors = {canonical_name(name): t for name, t in weights.items()}
        if len(tensors) != len(weights):
            raise WeightSyncError("two tensors have one name once wrappers are stripped")
        self._spec = [(n, list(t.shape), self._type_of(t)) for n, t in tensors.items()]
        await self._each(lambda server: self._learn(server, tensors))
        sent = {name: t for name, t in tensors.items() if name not in self._partner}
        return _agreed(await self._update(version, lambda: self._bring(sent)))

    async def welcome(self, server: ServerClient) -> None:
        """Give a server that has come back what the others have.

        Raises:
            WeightSyncError: It cannot be given, or it then holds something else.
        """
        async with self._lock:
            self._learned.discard(server.url)
            if self._last is None:
                return
            if not self._sync.can_repeat:
                raise WeightSyncError("it can join again when the run is resumed")
            await self._learn(server, {})
            await server.post("/pause", params={"mode": "keep"})
            try:
                await self._sync.receive(server)
                report = await self._commit(server, self._last.version)
            finally:
                await server.post("/resume")
            _agreed({"the others": self._last, server.url: report})

    async def rest(self) -> None:
        """Let servers on the trainer's device sleep until the next push."""
        if self._sync.releases_memory and not self._are_asleep:
            await self._each(lambda server: server.post("/sleep", params={"level": "2"}))
            self._are_asleep = True

    def _type_of(self, tensor: Tensor) -> str:
        dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
        return str(dtype).removeprefix("torch.")

    async def _bring(self, tensors: Mapping[str, Tensor]) -> None:
        if self._are_asleep:
            await self._wake("weights")
        await self._sync.send(self._pool.alive, tensors, dtype=self._dtype)
        for url, count in (await self._each(self._sync.receive)).items():
            if count != len(tensors):
                raise WeightSyncError(f"{len(tensors)} tensors were sent, {url} loaded {count}")

    async def _wake(self, tag: str) -> None:
        await self._each(lambda server: server.post("/wake_up", params={"tags": tag}))

    async def _update(
        self, version: int, bring: Callable[[], Awaitable[None]]
    ) -> dict[str, WeightReport]:
        await self._each(lambda server: server.post("/pause", params={"mode": "keep"}))
        try:
            await bring()
            reports = await self._each(lambda server: self._commit(server, version))
            if self._are_asleep:
                # Last of all, because vLLM resumes by itself with it.
                await self._wake("kv_cache")
                self._are_asleep = False
            return reports
        finally:
            await self._each(lambda server: server.post("/resume"))

    async def _commit(self, server: ServerClient, version: int) -> WeightReport:
        """Version on worker and token stamps, no old keys; then ask what is there."""
        await server.rpc("arise_finish", str(version))
        await server.post("/reset_prefix_cache", params={"reset_running_requests": "true"})
        await server.post("/update_weight_version", {"new_version": str(version)})
        return await self.report(server)

    async def report(self, server: ServerClient) -> WeightReport:
        """What one server holds, over all of its workers.

        Raises:
            WeightSyncError: Its workers, or worker and token stamps, disagree.
        """
        workers = await server.rpc("arise_report")
        stamp = (await server.get("/weight_info")).get("weight_version")
        versions = {int(worker["version"]) for worker in workers}
        if len(versions) != 1 or str(next(iter(versions))) != stamp:
            raise WeightSyncError(
                f"{server.url}: workers are at version {sorted(versions)}, tokens are stamped "
                f"{stamp!r}; somebody else updates this server, or an update broke off"
            )
        numel = {name: torch.Size(shape).numel() for name, shape, _ in self._spec}
        held = _merged((worker["shares"] for worker in workers), numel, server.url)
        derived = _merged((worker["derived"] for worker in workers), numel, server.url)
        for name, partner in self._partner.items():
            held[name] = derived.get(partner, held[partner])
        return WeightReport(version=versions.pop(), fingerprints=held, derived=derived)

    async def _learn(self, server: ServerClient, tensors: Mapping[str, Tensor]) -> None:
        """Once per server: where each tensor goes, and that all of them and nothing else does."""
        if server.url in self._learned:
            return
        workers = await server.rpc("arise_learn", json.dumps(self._spec))
        unused = set.intersection(*(set(worker["unused"]) for worker in workers))
        uncovered = [name for worker in workers for name in worker["uncovered"]]
        if tensors:
            self._partner = {name: _twin(name, tensors, unused) for name in sorted(unused)}
        lonely = [name for name, partner in self._partner.items() if not partner]
        groups = {"does not take": lonely, "is not given": uncovered}
        problems = [f"{what} {_shown(names)}" for what, names in groups.items() if names]
        if problems or unused != set(self._partner):
            raise WeightSyncError(
                f"{server.url} {'; '.join(problems) or 'takes other tensors than before'}. "
                f"{len(self._spec)} tensors are sent, {workers[0]['num_tensors']} have a place "
                f"among its {workers[0]['num_parameters']} parameters. Check that it plays this "
                "run's model"
            )
        self._learned.add(server.url)

    async def _each(self, call: Callable[[ServerClient], Awaitable[T]]) -> dict[str, T]:
        """Call every living server; those that are gone are left out, unless none is left."""
        servers = self._pool.alive
        results = await asyncio.gather(*map(call, servers), return_exceptions=True)
        done: dict[str, T] = {}
        for server, result in zip(servers, results, strict=True):
            if isinstance(result, ServerGone):
                self._pool.lose(server, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                done[server.url] = result
        if not done:
            raise next(result for result in results if isinstance(result, BaseException))
        return done


def _merged(
    workers: Iterable[Mapping[str, Sequence[Sequence[Any]]]], numel: Mapping[str, int], url: str
) -> dict[str, tuple[int, int]]:
    """Fingerprints from the shares of all workers; copies of one part must be equal."""
    parts: dict[str, dict[str, tuple[int, int, int]]] = {}
    for shares in workers:
        for name, several in shares.items():
            for key, count, plain, weighted in several:
                known = parts.setdefault(name, {}).setdefault(key, (count, plain, weighted))
                if known != (count, plain, weighted):
                    raise WeightSyncError(f"{url} holds several copies of {name} that differ")
    result = {}
    for name, found in parts.items():
        present = sum(count for count, _, _ in found.values())
        if present != numel[name]:
            raise WeightSyncError(
                f"{url} holds {present} of the {numel[name]} elements of {name}; its checksum "
                "cannot be computed"
            )
        result[name] = (
            wrap(sum(plain for _, plain, _ in found.values())),
            wrap(sum(weighted for _, _, weighted in found.values())),
        )
    return result


def _agreed(reports: Mapping[str, WeightReport]) -> WeightReport:
    """The report of all servers."""
    (first_url, first), *others = reports.items()
    for url, report in others:
        if report != first:
            raise WeightSyncError(f"{url} holds other weights than {first_url} after one update")
    return first


def _twin(name: str, tensors: Mapping[str, Tensor], unused: set[str]) -> str:
    """Another tensor with the same values, whose place in the model `name` shares; or nothing."""
    tensor = tensors[name]
    for other, candidate in tensors.items():
        is_candidate = other not in unused and candidate.shape == tensor.shape
        if is_candidate and torch.equal(candidate, tensor):
            return other
    return ""


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _NUM_SHOWN
    return ", ".join(names[:_NUM_SHOWN]) + (f" and {more} more" if more > 0 else "")
