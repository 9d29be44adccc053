from __future__ import annotations

import types
from typing import Any

from megatron_nanguard.cpurun.mapping.changes import ChangedAttributes


class Owner:
    def method(self) -> str:
        return "original"


class Heir(Owner):
    pass


def louder(original: Any) -> Any:
    return lambda *args: original(*args) + "!"


def test_restore_puts_back_the_very_object() -> None:
    changes, before = ChangedAttributes(), Owner.__dict__["method"]

    changes.wrap(Owner, "method", louder)
    changes.wrap(Owner, "method", louder)
    assert Owner().method() == "original!!"
    changes.restore()

    assert Owner.__dict__["method"] is before
    assert not changes.is_applied


def test_restore_leaves_no_copy_of_an_inherited_attribute() -> None:
    changes = ChangedAttributes()

    changes.put(Heir, "method", lambda self: "put")
    assert Heir().method() == "put"
    changes.restore()

    assert "method" not in vars(Heir)
    assert Heir().method() == "original"


def test_restore_removes_what_was_not_there() -> None:
    changes, module = ChangedAttributes(), types.SimpleNamespace()

    changes.put(module, "answer", 42)
    assert module.answer == 42
    changes.restore()

    assert not hasattr(module, "answer")


def test_a_copy_of_a_wrapper_calls_the_original_after_restore() -> None:
    changes = ChangedAttributes()
    changes.wrap(Owner, "method", louder)
    kept = Owner.method

    assert kept(Owner()) == "original!"
    changes.restore()

    assert kept(Owner()) == "original"


def test_names_are_those_of_one_owner() -> None:
    changes = ChangedAttributes()
    changes.put(Owner, "one", 1)
    changes.put(Heir, "two", 2)

    assert changes.names(Owner) == {"one"}
    assert changes.names(Heir) == {"two"}
    changes.restore()
