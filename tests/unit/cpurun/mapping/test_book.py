from __future__ import annotations

import types
from typing import Any

from megatron_nanguard.cpurun.mapping.book import PatchBook


class Owner:
    def method(self) -> str:
        return "original"


class Heir(Owner):
    pass


def louder(original: Any) -> Any:
    return lambda *args: original(*args) + "!"


def test_restore_puts_back_the_very_object() -> None:
    book, before = PatchBook(), Owner.__dict__["method"]

    book.wrap(Owner, "method", louder)
    book.wrap(Owner, "method", louder)
    assert Owner().method() == "original!!"
    book.restore()

    assert Owner.__dict__["method"] is before
    assert not book.is_open


def test_restore_leaves_no_copy_of_an_inherited_attribute() -> None:
    book = PatchBook()

    book.put(Heir, "method", lambda self: "put")
    assert Heir().method() == "put"
    book.restore()

    assert "method" not in vars(Heir)
    assert Heir().method() == "original"


def test_restore_removes_what_was_not_there() -> None:
    book, module = PatchBook(), types.SimpleNamespace()

    book.put(module, "answer", 42)
    assert module.answer == 42
    book.restore()

    assert not hasattr(module, "answer")


def test_a_copy_kept_elsewhere_passes_through_after_restore() -> None:
    book = PatchBook()
    book.wrap(Owner, "method", louder)
    kept = Owner.method

    assert kept(Owner()) == "original!"
    book.restore()

    assert kept(Owner()) == "original"


def test_names_tells_owners_apart() -> None:
    book = PatchBook()
    book.put(Owner, "one", 1)
    book.put(Heir, "two", 2)

    assert book.names(Owner) == {"one"}
    assert book.names(Heir) == {"two"}
    book.restore()
