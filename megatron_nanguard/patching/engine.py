"""Apply patch points when their modules are imported, group by group, and restore the identical original objects."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import wrapt

from megatron_nanguard.errors import PatchDeclined
from megatron_nanguard.patching.point import PatchPoint, PointState, Target, Wrapped, Wrapper
from megatron_nanguard.patching.shield import Shield

log = logging.getLogger("megatron_nanguard")


@dataclass(eq=False)
class Applied:
    """One wrapper that is in place, with the function it replaced.

    Attributes:
        live: the wrapper does its work; once withdrawn it only calls the original, wherever it is still held.
    """

    point: PatchPoint
    target: Target
    owner: object
    name: str
    original: Wrapped
    wrapper: Wrapped
    live: bool = True


class Engine:
    """Applies and removes all wrappers of this process.

    Args:
        points: the table, in order.
        handler_of: point name -> handler given to ``make_wrapper``; called when the point is applied.
        release: returns the release line of the host; called when the first module is imported.
    """

    def __init__(
        self,
        points: Sequence[PatchPoint],
        handler_of: Callable[[str], Any],
        release: Callable[[], tuple[int, int] | None],
    ) -> None:
        self.points = tuple(points)
        self.fired: Counter[str] = Counter()
        """Calls by target."""
        self.fired_points: Counter[str] = Counter()
        """Calls by name of the patch point."""
        self.declined: dict[str, str] = {}
        """Group -> why it was withdrawn."""
        self.on = False
        self._handler_of = handler_of
        self._release = release
        self._applied: list[Applied] = []
        self._seen: set[str] = set()
        self._num_aside = 0

    def install(self) -> None:
        """Patch every target whose module is imported, now or later. Idempotent."""
        if self.on:
            return
        self.on = True
        for module in dict.fromkeys(target.module for _, target in self._targets()):
            when_imported(module, self._module_arrived)

    def remove(self) -> list[str]:
        """Undo everything, last first. Another wrapper on top of ours stays, and ours then only calls the original.

        Returns:
            The targets that could not be put back.
        """
        self.on = False
        self._seen.clear()
        self.declined.clear()
        return [applied.target.path for applied in self._withdraw(list(self._applied))]

    @contextmanager
    def stand_aside(self) -> Iterator[None]:
        """Withdraw every wrapper while another package patches the host; then wrap what it left. May be nested.

        Ours in between would be lost with a function that the other package replaces, and would keep it from
        recognizing and restoring its own.
        """
        self._num_aside += 1
        if self._num_aside == 1:
            self._withdraw(list(self._applied))
        try:
            yield
        finally:
            self._num_aside -= 1
            if self.on and not self._num_aside:
                self._apply_all()
                self._widen()

    def heal(self) -> list[Applied]:
        """Wrap again what another package has wrapped without a trace or replaced, and overrides that are new.

        Returns:
            The wrappers that were lost. One that cannot be put back has withdrawn its group.
        """
        lost = [applied for applied in self._applied if not _is_in_place(applied)]
        self._withdraw(lost)
        for applied in lost:
            self._apply_or_decline(applied.point, applied.target, applied.owner, applied.name)
        self._widen()
        return lost

    def state(self, target: Target) -> PointState:
        """Return the state of one target, as it is now."""
        for applied in self._applied:
            if applied.target is target:
                return PointState.ACTIVE if _is_in_place(applied) else PointState.FOREIGN
        if target.module not in sys.modules:
            return PointState.WAITING
        point = next(point for point, other in self._targets() if other is target)
        return PointState.DECLINED if point.group in self.declined else PointState.ABSENT

    def _targets(self) -> Iterator[tuple[PatchPoint, Target]]:
        return ((point, target) for point in self.points for target in point.targets)

    def _module_arrived(self, module: ModuleType) -> None:
        name = module.__name__
        if not self.on or name in self._seen:
            return
        self._seen.add(name)
        if not self._num_aside:
            self._apply_all(name)

    def _apply_all(self, module: str | None = None) -> None:
        """Apply every target of a module that has arrived, or of all such modules."""
        for point, target in self._targets():
            is_meant = target.module == module if module else target.module in self._seen
            if is_meant and point.group not in self.declined:
                self._apply_or_decline(point, target, *find_owner(target, sys.modules[target.module]))

    def _widen(self) -> None:
        """Wrap the overrides of a family's method in subclasses. A class that has none inherits the wrapper."""
        for applied in [applied for applied in self._applied if applied.target.family]:
            held = {id(other.owner) for other in self._applied if other.name == applied.name}
            for kind in subclasses(applied.owner):
                if id(kind) not in held and callable(vars(kind).get(applied.name)):
                    held.add(id(kind))
                    target = Target(f"{kind.__module__}:{kind.__qualname__}.{applied.name}")
                    self._apply_or_decline(applied.point, target, kind, applied.name)

    def _apply_or_decline(self, point: PatchPoint, target: Target, owner: object, name: str) -> None:
        """Apply a point, or decline its group: an error of ours must not fail an import of the host."""
        shield = Shield()
        try:
            with shield(f"patching {target.path}", PatchDeclined):
                self._apply(point, target, owner, name)
        except PatchDeclined as reason:
            self._decline(point.group, str(reason))
        if shield.fault is not None:
            self._decline(point.group, f"{shield.fault}; without it: {point.lost}")

    def _apply(self, point: PatchPoint, target: Target, owner: object, name: str) -> None:
        if owner is None or name not in vars(owner):
            release = self._release()
            if release is None or target.covers(release):
                raise PatchDeclined(f"{target.path} is not in this Megatron; without it: {point.lost}")
            return
        original = vars(owner)[name]
        _check_signature(target, original, point)
        applied = Applied(point, target, owner, name, original, original)
        applied.wrapper = self._wrap(applied, point.make_wrapper(self._handler_of(point.name)))
        setattr(owner, name, applied.wrapper)
        _exchange_copies(target, original, applied.wrapper)
        self._applied.append(applied)

    def _wrap(self, applied: Applied, wrapper: Wrapper) -> Wrapped:
        """Return a plain function, so that a class binds it and a config that holds it can be deep-copied."""
        point, target, original = applied.point, applied.target, applied.original
        is_method = "." in target.attribute

        @functools.wraps(original)
        def call(*args: object, **kwargs: object) -> object:
            if not applied.live:
                return original(*args, **kwargs)
            self.fired[target.path] += 1
            self.fired_points[point.name] += 1
            if is_method:
                instance, rest = args[0], args[1:]
                return wrapper(functools.partial(original, instance), instance, rest, kwargs)
            return wrapper(original, None, args, kwargs)

        call.__nanguard_point__ = point.name  # type: ignore[attr-defined]
        return call

    def _decline(self, group: str, reason: str) -> None:
        self.declined[group] = reason
        self._withdraw([applied for applied in self._applied if applied.point.group == group])
        log.debug("patch group %r is not applied: %s", group, reason)

    def _withdraw(self, chosen: list[Applied]) -> list[Applied]:
        kept = []
        for applied in reversed(chosen):
            self._applied.remove(applied)
            applied.live = False
            _exchange_copies(applied.target, applied.wrapper, applied.original)
            if vars(applied.owner).get(applied.name) is applied.wrapper:
                setattr(applied.owner, applied.name, applied.original)
            else:
                kept.append(applied)
        return kept


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Call ``call(module)`` when ``name`` is imported, or now if it is. A registration cannot be undone.

    Looks into sys.modules, since a package may hold a function under the name of its module.
    """
    if name in sys.modules:
        call(sys.modules[name])
    else:
        wrapt.register_post_import_hook(call, name)


def find_owner(target: Target, module: ModuleType) -> tuple[object, str]:
    """Return the object that holds the function, and its name there; (None, name) if the class is missing."""
    *path, name = target.attribute.split(".")
    owner: object = module
    for part in path:
        owner = vars(owner).get(part)
        if owner is None:
            return None, name
    return owner, name


def _exchange_copies(target: Target, old: object, new: object) -> None:
    """Replace the copies that other modules hold because they imported the function by name."""
    for copy in target.copies:
        holder, _, name = copy.partition(":")
        if holder in sys.modules and vars(sys.modules[holder]).get(name) is old:
            setattr(sys.modules[holder], name, new)


def _check_signature(target: Target, original: object, point: PatchPoint) -> None:
    if not callable(original):
        raise PatchDeclined(f"{target.path} is a {type(original).__name__}, a function is expected; lost: {point.lost}")
    seen = tuple(inspect.signature(original).parameters)
    if seen[: len(target.parameters)] != target.parameters and not _takes_anything(original):
        raise PatchDeclined(
            f"{target.path} takes ({', '.join(seen)}), expected to begin with ({', '.join(target.parameters)}); "
            f"without it: {point.lost}"
        )


def _takes_anything(function: Wrapped) -> bool:
    """Say whether the function takes *args and **kwargs, like a wrapper of another package."""
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    return inspect.Parameter.VAR_POSITIONAL in kinds and inspect.Parameter.VAR_KEYWORD in kinds


def subclasses(owner: object) -> Iterator[type]:
    """Yield every subclass that exists now, each once; none for what is no class."""
    pending: list[type] = type.__subclasses__(owner) if isinstance(owner, type) else []
    seen: set[type] = set()
    while pending:
        kind = pending.pop()
        if kind not in seen:
            seen.add(kind)
            pending += type.__subclasses__(kind)
            yield kind


def _is_in_place(applied: Applied) -> bool:
    """Say whether the host still holds our wrapper, or one that wraps it in a chain of ``__wrapped__``."""
    there = vars(applied.owner).get(applied.name)
    while there is not None:
        if there is applied.wrapper:
            return True
        there = getattr(there, "__wrapped__", None)
    return False
