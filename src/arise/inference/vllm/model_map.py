"""The trainer's tensors inside one vLLM worker's model: where they go, and what is there now."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from arise.inference.vllm.layout import CopyRecorder, Region, Share, read_back, share

logger = logging.getLogger(__name__)


class ModelMap:
    """Made once per model, for the tensors that the trainer is going to send.

    Args:
        model: The worker's model.
        vllm_config: Its configuration.
        tensors: Name, shape and dtype of each of the trainer's tensors.

    Attributes:
        regions: Where the elements of the trainer's tensors are, by engine parameter.
        unused: Tensors that the model does not take, such as a head that is tied.
        uncovered: The engine's parameters that no tensor fills.
    """

    def __init__(
        self, model: nn.Module, vllm_config: Any, tensors: Sequence[tuple[str, list[int], str]]
    ) -> None:
        self._model = model
        self._numel = {name: torch.Size(shape).numel() for name, shape, _ in tensors}
        self._dtype = {name: getattr(torch, dtype) for name, _, dtype in tensors}
        self._heads = _heads(model)
        self._tied = _tied(model)
        self._shapes: dict[str, torch.Size] = {}
        self.regions: dict[str, list[Region]] = defaultdict(list)
        for region in self._learn(vllm_config, tensors):
            # A head that is tied has the embedding's weight, whatever it is given.
            if region.parameter not in self._tied:
                self.regions[region.parameter].append(region)
        used = {region.name for regions in self.regions.values() for region in regions}
        self.unused = [name for name in self._numel if name not in used]
        self.uncovered = [name for name in self._shapes if self._lacks(name)]

    def summary(self) -> dict[str, Any]:
        """For the trainer: counts, and the names on both sides that have no partner."""
        return {
            "num_tensors": len(self._numel) - len(self.unused),
            "num_parameters": len(self._shapes),
            "unused": self.unused,
            "uncovered": self.uncovered,
        }

    def _learn(
        self, vllm_config: Any, tensors: Sequence[tuple[str, list[int], str]]
    ) -> list[Region]:
        """Load tensors without memory into parameters without memory, and watch."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import layerwise

        model: Any = self._model
        layerwise.initialize_layerwise_reload(model)
        try:
            empty = dict(model.named_parameters())
            for parameter in empty.values():
                # The layers' own loaders, without the buffering that a real reload needs.
                parameter.weight_loader = layerwise._get_original_loader(parameter)
            self._shapes = {n: p.shape for n, p in empty.items() if n not in self._tied}
            recorder = CopyRecorder({**dict(model.named_buffers()), **empty})
            pairs = (
                (name, torch.empty(shape, dtype=getattr(torch, dtype), device="meta"))
                for name, shape, dtype in tensors
            )
            with set_current_vllm_config(vllm_config), torch.no_grad(), recorder:
                model.load_weights(recorder.watch(pairs))
        finally:
            for layer in model.modules():
                info = layerwise.get_layerwise_info(layer)
                if info.kernel_tensors is not None:
                    layerwise._place_kernel_tensors(layer, info)
                info.reset()
            model._do_torchao_reload = model._original_do_torchao_reload
        return recorder.regions

    def _lacks(self, name: str) -> bool:
        """Whether elements of a parameter get no value; the padding of a vocabulary needs none."""
        module, shape = self._module_of(name), self._shapes[name]
        needed = shape.numel()
        shard = getattr(module, "shard_indices", None)
        if shard is not None and len(shape) > 0:
            needed = shard.num_org_elements * (needed // max(1, shape[0]))
        return sum(region.target.numel for region in self.regions.get(name, ())) < needed

    def _module_of(self, name: str) -> Any:
        return self._model.get_submodule(name.rpartition(".")[0])

    def renew_derived(self) -> None:
        """Repack heads that are tied: vLLM's reload renews the embedding and forgets them.

        Without it the head goes on computing with the weights of the first load.
        """
        for name in self._tied:
            module = self._module_of(name)
            if name.rpartition(".")[2] == "weight" and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)

    def report(self) -> dict[str, Any]:
        """Shares of fingerprints: of the tensors, and of the repacked copies beside them."""
        shares: dict[str, list[Share]] = defaultdict(list)
        derived: dict[str, list[Share]] = defaultdict(list)
        with torch.no_grad():
            for name, regions in self.regions.items():
                matrices = list(self._matrices(name, self._shape(name)))
                if not matrices:
                    raise RuntimeError(
                        f"{name} of the engine cannot be read: it was repacked in a way this "
                        "project does not know, so no sync could be proven"
                    )
                for alias in (alias for alias, first in self._tied.items() if first == name):
                    matrices += list(self._matrices(alias, self._shape(name)))[1:]
                for region in regions:
                    for index, matrix in enumerate(matrices):
                        made = share(
                            region,
                            matrix,
                            dtype=self._dtype[region.name],
                            numel=self._numel[region.name],
                        )
                        (derived if index else shares)[region.name].append(made)
        return {"shares": _as_json(shares), "derived": _as_json(derived)}

    def _shape(self, name: str) -> torch.Size:
        if name in self._shapes:
            return self._shapes[name]
        return self._model.get_buffer(name).shape

    def _matrices(self, name: str, shape: torch.Size) -> Iterator[Tensor]:
        """The parameter, if it still has its elements, and the copy a kernel computes with."""
        module, leaf = self._module_of(name), name.rpartition(".")[2]
        stored = getattr(module, leaf)
        if stored.shape == shape:
            yield stored
        # An embedding only looks rows up, unless it is the output head as well.
        is_lookup = hasattr(module, "org_vocab_size") and id(module) not in self._heads
        if leaf == "weight" and len(shape) == 2 and hasattr(module, "cpu_linear") and not is_lookup:
            yield read_back(
                lambda rows: module.cpu_linear(rows, module.weight, None),
                (shape[0], shape[1]),
                stored.dtype,
            )


def _heads(model: nn.Module) -> set[int]:
    """Ids of the modules that compute logits."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    found = {id(m) for m in model.modules() if isinstance(m, ParallelLMHead)}
    return found | {id(m.lm_head) for m in model.modules() if hasattr(m, "lm_head")}


def _tied(model: nn.Module) -> dict[str, str]:
    """Parameters under a second name: that name to the first."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        # Parameters that a kernel emptied share nothing.
        known = first.setdefault(id(parameter), name) if parameter.numel() else name
        if known != name:
            tied[name] = known
    return tied


def _as_json(shares: Mapping[str, list[Share]]) -> dict[str, list[list[Any]]]:
    return {
        name: [[made.key, made.numel, *made.sums] for made in several]
        for name, several in shares.items()
    }
