"""A second device that needs no hardware, and is as strict as a GPU about what meets on it.

Its tensors are CPU tensors inside that call themselves `meta` outside. What runs on them runs on a
CPU, but a tensor of one device in an operation on the other is an error, as is asking one for
numpy's view of its memory. So code that forgets a device shows here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

ELSEWHERE = torch.device("meta")

_INDEXING = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put_.default,
    torch.ops.aten.index_put.default,
    torch.ops.aten._index_put_impl_.default,
}
"""A GPU's tensor takes indices that lie on the CPU."""


class WrongDevice(AssertionError):
    """Tensors of two devices met."""


class Elsewhere(Tensor):
    """A tensor on the pretended device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=ELSEWHERE,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __setitem__(self, index: Any, value: Any) -> None:
        """Lists and numbers become tensors here, since torch would make meta tensors of them."""
        whole = index if isinstance(index, tuple) else (index,)
        at = tuple(torch.tensor(x) if isinstance(x, list) else x for x in whole)
        put = value if isinstance(value, Tensor) else torch.tensor(value, dtype=self.dtype)
        super().__setitem__(at, put)

    def data_ptr(self) -> int:
        """Of the memory behind it."""
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        """Values on the host."""
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """A copy on the host, if it is asked for."""
        if not force:
            raise WrongDevice("numpy() of a tensor on a device; it takes force=True")
        return np.array(self.inner.detach().numpy())

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.inner!r})"


class _Factories(TorchDispatchMode):
    """Makes tensors on the pretended device that torch would make as meta tensors."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flat, _ = tree_flatten((args, kwargs))
    mine = [x for x in flat if isinstance(x, Elsewhere)]
    others = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, Elsewhere)]
    assert not any(x.is_meta for x in others), f"{func}: a tensor that nobody pretended"
    asked = next((x for x in flat if isinstance(x, torch.device)), None)
    if mine and any(x.dim() for x in others) and func is not torch.ops.aten.copy_.default:
        indexed = func in _INDEXING and isinstance(args[0], Elsewhere)
        if not indexed or any(x.dim() and x.is_floating_point() for x in others):
            raise WrongDevice(f"{func}: {len(mine)} tensors on the device, {len(others)} are not")
    inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
    out = func(*inner_args, **inner_kwargs)
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if asked is not None:  # a factory, or a move, which copies
        copy = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, out)
        return tree_map(_outer, copy) if asked == ELSEWHERE else copy
    if not mine:
        return out
    return return_and_correct_aliasing(func, args, kwargs, tree_map(_outer, out))


def _inner(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return x.inner if isinstance(x, Elsewhere) else x


def _outer(x: Any) -> Any:
    return Elsewhere(x) if isinstance(x, Tensor) and not isinstance(x, Elsewhere) else x


@contextmanager
def a_second_device() -> Iterator[None]:
    """Within it `device=ELSEWHERE` and `.to(ELSEWHERE)` mean the pretended device."""
    make = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        """`torch.tensor` goes to its device where no mode sees it."""
        made = make(data, **options)
        return made if device is None else made.to(device)

    with pytest.MonkeyPatch.context() as patch, _Factories():
        patch.setattr(torch, "tensor", tensor)
        # views of wrapped tensors have no place in inference mode
        patch.setattr(torch, "inference_mode", torch.no_grad)
        yield


def moved(model: nn.Module) -> Any:
    """The model with its parameters and buffers put on the pretended device, in place."""
    known: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                there = known.get(id(weight))
                if there is None:
                    there = known[id(weight)] = nn.Parameter(cast(Tensor, Elsewhere(weight.data)))
                module._parameters[name] = there
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Elsewhere(buffer)
    return model


def back(x: Tensor) -> Tensor:
    """The same numbers on the CPU."""
    return x.detach().inner if isinstance(x, Elsewhere) else x  # type: ignore[attr-defined]
