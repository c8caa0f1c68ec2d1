"""Where a checkpoint's tensors lie inside a model that fuses, pads and shards them.

vLLM keeps `q_proj`, `k_proj` and `v_proj` as rows of one matrix, pads vocabularies and cuts
matrices over devices. Its own weight loaders know how; watching which elements they copy where,
once, on tensors without memory, gives an exact map for any architecture. With it, fingerprints can
be computed from the very elements that the engine computes with, under the trainer's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from arise.inference.weights import fingerprint, partial_fingerprint

_ROWS = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A strided view: element (i, j, …) stands at offset + i·strides[0] + j·strides[1] + ….

    Attributes:
        shape: Of the view.
        strides: In elements.
        offset: In elements.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> View:
        """The view that a tensor is of its storage."""
        return cls(
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            offset=int(tensor.storage_offset()),
        )

    @property
    def numel(self) -> int:
        """Number of elements."""
        return int(torch.Size(self.shape).numel())

    def of_tensor(self, whole: Tensor) -> Tensor:
        """This view of a contiguous tensor."""
        return whole.as_strided(self.shape, self.strides, self.offset)

    def positions(self, device: torch.device) -> Tensor:
        """int64[shape], each element's place in the storage."""
        places = torch.full(self.shape, self.offset, dtype=torch.int64, device=device)
        for axis, (length, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            steps = torch.arange(length, dtype=torch.int64, device=device) * stride
            places += steps.view(-1, *(1,) * (len(self.shape) - axis - 1))
        return places

    @property
    def key(self) -> str:
        """The same for equal views."""
        return f"{self.offset}:{self.shape}:{self.strides}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Elements of one of the trainer's tensors, and where the engine holds them.

    Attributes:
        name: The trainer's tensor.
        source: Its elements.
        parameter: The engine's parameter.
        target: Its elements, in the same order.
    """

    name: str
    source: View
    parameter: str
    target: View


class CopyRecorder(TorchDispatchMode):
    """Watches copies from known tensors into known parameters.

    Args:
        parameters: The engine's parameters by name.

    Attributes:
        regions: What was copied, in order.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.regions: list[Region] = []
        self._parameters = {_storage(tensor): name for name, tensor in parameters.items()}
        self._sources: dict[int, tuple[str, Tensor]] = {}

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        """The same pairs; each tensor is known from the moment it is handed over."""
        for name, tensor in weights:
            # Kept alive, so that no later tensor gets the same storage.
            self._sources[_storage(tensor)] = (name, tensor)
            yield name, tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note a copy between known tensors and carry on."""
        if func is torch.ops.aten.copy_.default:
            target, source = args[0], args[1]
            known = self._sources.get(_storage(source))
            parameter = self._parameters.get(_storage(target))
            if known is not None and parameter is not None and target.shape == source.shape:
                region = Region(
                    name=known[0],
                    source=View.of(source),
                    parameter=parameter,
                    target=View.of(target),
                )
                self.regions.append(region)
        return func(*args, **(kwargs or {}))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one worker says about the elements of one tensor that it holds.

    Attributes:
        key: Which elements.
        numel: How many.
        sums: Their share of the tensor's fingerprint.
    """

    key: str
    numel: int
    sums: tuple[int, int]


def share(region: Region, matrix: Tensor, *, dtype: torch.dtype, numel: int) -> Share:
    """Fingerprint of one region, from the elements that the engine holds.

    Args:
        region: What to read.
        matrix: The parameter, or the matrix that a kernel computes with in its place.
        dtype: What the trainer sent; an engine may hold some tensors in a wider type.
        numel: Elements of the whole tensor.
    """
    held = region.target.of_tensor(matrix.contiguous())
    values = held.to(dtype) if held.is_floating_point() else held
    if region.source.numel == numel and _is_contiguous(region.source):
        sums = fingerprint(values)
    else:
        sums = _by_rows(values, region.source)
    return Share(key=region.source.key, numel=region.source.numel, sums=sums)


def _by_rows(values: Tensor, source: View) -> tuple[int, int]:
    """A few million elements at a time: their places take eight bytes each."""
    if values.ndim == 0:
        return partial_fingerprint(values, source.positions(values.device))
    row = max(1, values[0].numel()) if values.shape[0] else 1
    step = max(1, _ROWS // row)
    plain = weighted = 0
    for start in range(0, values.shape[0], step):
        block = values[start : start + step]
        part = View(
            shape=tuple(block.shape),
            strides=source.strides,
            offset=source.offset + start * source.strides[0],
        )
        sums = partial_fingerprint(block, part.positions(values.device))
        plain, weighted = plain + sums[0], weighted + sums[1]
    return plain, weighted


def _is_contiguous(view: View) -> bool:
    expected = 1
    for length, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return view.offset == 0


def read_back(
    apply: Callable[[Tensor], Tensor], shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """The matrix that a linear kernel computes with, element for element.

    A kernel may keep its own repacked copy of a weight and forget the original. x W^T with the
    rows of the identity for x gives the columns of W exactly: every sum has one term that is not
    zero.

    Args:
        apply: x[M, K] to x W^T [M, N].
        shape: (N, K).
        dtype: Of the matrix.

    Returns:
        [N, K].
    """
    num_rows, num_columns = shape
    matrix = torch.empty(num_rows, num_columns, dtype=dtype)
    block = 256
    for start in range(0, num_columns, block):
        stop = min(start + block, num_columns)
        unit = torch.zeros(stop - start, num_columns, dtype=dtype)
        unit[torch.arange(stop - start), torch.arange(start, stop)] = 1
        matrix[:, start:stop] = apply(unit).to(dtype).T
    return matrix
