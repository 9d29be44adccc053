"""Which module runs: a stack kept by the global module hooks of torch, which change no values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle


class ModuleStack:
    """The modules entered and not yet left, innermost last.

    The stack is no `threading.local`: the threads of the autograd engine must see it too.
    """

    def __init__(self, names: Mapping[Module, str], before_change: Callable[[], None]) -> None:
        self._names = names
        self._before_change = before_change
        self._entered: list[Module] = []
        self._handles: list[RemovableHandle] = []
        self._with_hooks: set[Module] = set()

    @property
    def current(self) -> str:
        """Global path of the innermost module that has one, else the class of the innermost; empty if none runs."""
        for module in reversed(self._entered):
            name = self._names.get(module)
            if name:
                return name
        return type(self._entered[-1]).__name__ if self._entered else ""

    def attach(self) -> None:
        """Start to follow every module of the process."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            # `always_call`: a checkpoint that has recomputed enough leaves its modules by an exception.
            register_module_forward_hook(self._leave_before_hooks, always_call=True),
        ]

    def detach(self) -> None:
        """Stop following."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._with_hooks.clear()
        self._entered.clear()

    def _enter(self, module: Module, args: Any) -> None:
        self._before_change()
        self._entered.append(module)
        # Global hooks run before those of the module, which still belong to it: leave the module in its last hook.
        if module._forward_hooks and module not in self._with_hooks:
            self._with_hooks.add(module)
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))

    def _leave_before_hooks(self, module: Module, args: Any, output: Any) -> None:
        if module not in self._with_hooks:
            self._leave(module, args, output)

    def _leave(self, module: Module, args: Any, output: Any) -> None:
        self._before_change()
        while self._entered and self._entered.pop() is not module:
            pass
