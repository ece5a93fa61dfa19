"""How much memory and how many operations a model takes, from the shapes of its tensors alone.

Weights and activations are torch's fake tensors, which have a shape and a storage but no values, so
that a model of any size runs in seconds without its weights and without a GPU. The code that runs
is the code that would run: what it frees is freed, and what the backward pass needs is kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop

_FORMULAS: dict[Any, Any] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
}
_LARGE = 2**14
"""Real floating-point results with more elements become fake: their values decide nothing."""


class Footprint(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows which storages are alive while operations run.

    Integers that code decides by, such as token ids and masks, stay real; whatever is computed from
    a fake tensor is fake. Code that asks for the value of a fake tensor gets 1, or False.

    ``now`` and ``peak`` are the bytes of all tensors that are alive, and the most so far, without
    buffers inside a kernel, an allocator's reserve and a device's context. ``flops`` are operations
    of matrix products (2 m n k for an (m, k) and a (k, n) matrix), convolutions and attention.

    Examples
    --------
    >>> with torch.device("meta"):
    ...     layer = nn.Linear(1000, 1000, bias=False, dtype=torch.bfloat16)
    >>> footprint = Footprint()
    >>> _ = footprint.load(layer)
    >>> with footprint, torch.no_grad():
    ...     _ = layer(footprint.empty(10, 1000, dtype=torch.bfloat16))
    >>> footprint.peak, footprint.flops
    (2040000, 20000000)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.now = self.peak = self.flops = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor without values, which counts."""
        with self.fake_mode:
            tensor = torch.empty(shape, dtype=dtype)
        return self.count(tensor)

    def load(self, model: Any) -> Any:
        """Give a model on the meta device weights without values, which count; return it."""
        fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # with the old one, to keep its id
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for name, original in tensors.items():
                    if original is None:
                        continue
                    if id(original) not in fakes:
                        fakes[id(original)] = (self._without_values(original), original)
                    tensors[name] = fakes[id(original)][0]
        return model

    def _without_values(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = self.empty(*tensor.shape, dtype=tensor.dtype)
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake

    def without_values(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return a model's inputs with floating-point tensors, such as pixels, without values."""
        return {
            name: self.empty(*value.shape, dtype=value.dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in inputs.items()
        }

    def peak_of(self, run: Callable[[], Any]) -> int:
        """Return the bytes alive at the peak of ``run``, with all that was alive before."""
        self.peak = self.now
        with self:
            run()
        return self.peak

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return False if args[0].dtype == torch.bool else 1
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and self._decides_nothing(result):
            result = self.fake_mode.from_tensor(result)
        self._count_all(tree_leaves(result))
        if formula := _FORMULAS.get(func._overloadpacket):
            self.flops += formula(*args, **kwargs, out_val=result)
        return result

    def _decides_nothing(self, result: torch.Tensor) -> bool:
        is_real = not isinstance(result, FakeTensor)
        return is_real and result.is_floating_point() and result.numel() > _LARGE

    def _count_all(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                self.count(value)

    def count(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor's storage until it is freed; return the tensor."""
        storage = tensor.untyped_storage()
        key, n_bytes = storage._cdata, storage.nbytes()
        if key not in self._alive:

            def free(_: Any) -> None:
                del self._alive[key]
                self.now -= n_bytes

            self._alive[key] = weakref.ref(storage, free)
            self.now += n_bytes
            self.peak = max(self.peak, self.now)
        return tensor
