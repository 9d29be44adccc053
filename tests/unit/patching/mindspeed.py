"""A stand-in for MindSpeed's patch manager, written from what it does: module text to import in a test.

Source: mindspeed/patch_utils.py, Patch and MindSpeedPatchesManager, core_r0.12.1 (classes are not restored) and
    core_r0.15.3 (they are)
"""

from __future__ import annotations

TEXT = """
import importlib
import inspect
import sys

RESTORES_CLASSES = {restores_classes}


class Patch:
    def __init__(self, path):
        owner, self.name = path.rsplit(".", 1)
        self.owner_name = owner.rsplit(".", 1)[1]
        self.replacement, self.wrappers, self.applied, self.final = None, [], False, None
        self.path, self.owner, self.original = owner, None, None

    def add(self, function):
        if function.__name__.endswith("wrapper"):
            if function not in self.wrappers:
                self.wrappers.append(function)
        else:
            self.replacement = function
        self.applied = False

    def _resolve(self):
        try:
            return importlib.import_module(self.path)
        except ModuleNotFoundError:
            module, name = self.path.rsplit(".", 1)
            return getattr(importlib.import_module(module), name)

    def apply(self):
        if self.applied:
            return
        owner = self._resolve()
        current = getattr(owner, self.name)
        if self.owner is None:
            self.owner, self.original = owner, current
        final = self.replacement or self.original
        for wrapper in self.wrappers:
            final = wrapper(final)
        setattr(self.owner, self.name, final)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(self.name) is current:
                setattr(module, self.name, final)
        self.applied, self.final = True, final

    def remove(self):
        for module in list(sys.modules.values()):
            holder = module
            if RESTORES_CLASSES and inspect.isclass(self.owner) and hasattr(module, self.owner_name):
                holder = getattr(module, self.owner_name)
            if getattr(holder, "__dict__", {}).get(self.name) is self.final:
                setattr(holder, self.name, self.original)
        self.replacement, self.final, self.applied = None, None, False


class MindSpeedPatchesManager:
    patches_info = {}

    @staticmethod
    def register_patch(path, function):
        MindSpeedPatchesManager.patches_info.setdefault(path, Patch(path)).add(function)

    @staticmethod
    def apply_patches():
        for patch in MindSpeedPatchesManager.patches_info.values():
            patch.apply()

    @staticmethod
    def remove_patches():
        for patch in MindSpeedPatchesManager.patches_info.values():
            patch.remove()
            patch.wrappers.clear()
"""


def text(*, restores_classes: bool) -> str:
    """The module as one of the two generations has it."""
    return TEXT.replace("{restores_classes}", str(restores_classes))
