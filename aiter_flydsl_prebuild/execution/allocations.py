"""Tensors that an op makes for itself while it is called (the partial sums of a split K), in guarded memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .memory import POISON, Memory

_ALLOCATIONS = (torch.empty, torch.zeros, torch.ones, torch.full)


class Placing(TorchFunctionMode):
    """Replaces what these functions return by a tensor that a kernel may touch."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _ALLOCATIONS or made.numel() == 0 or made.device.type != "cpu":
            return made
        with torch._C.DisableTorchFunction():
            content = made.contiguous().view(-1).view(torch.uint8).numpy().copy()
            if func is torch.empty:
                content[:] = POISON
            placed = self._memory.place(content, "a tensor that the op makes", writable=True)
            return torch.from_numpy(placed).view(made.dtype).view(made.shape)
