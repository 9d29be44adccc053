"""What the page may do: run the scripts that it was written with, and reach nothing.

Module names, notes and file names in a post-mortem are hostile input. Templates escape them; should one slip through,
the policy still lets nothing run whose digest is not listed, and lets nothing out.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from megatron_nanguard.printable import printable

INSIDE_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def digest(text: str) -> str:
    """Name of an inline script in a policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def content_policy(scripts: Iterable[str]) -> str:
    """The policy of the page.

    Args:
        scripts: digests of all scripts that may run.
    """
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(scripts),
        # plotly.js makes style elements of its own; where nothing can be fetched, a style can tell nobody anything.
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def island(data: Any) -> str:
    """Data as JSON that no HTML parser takes for the end of its script element."""
    return orjson.dumps(_printable(data)).decode().translate(INSIDE_SCRIPT)


def _printable(data: Any) -> Any:
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {_printable(key): _printable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_printable(value) for value in data]
    return data


@dataclass(frozen=True)
class PackedScript:
    """A script that the page unpacks when it opens.

    Attributes:
        packed: deflated, in base64.
        digest: of the script, for the security policy.
    """

    packed: str
    digest: str


def plotting_library() -> PackedScript:
    """Read plotly.js and pack it."""
    # Imported here: `nanguard report` without a page must start without it.
    from plotly.offline import get_plotlyjs

    script = get_plotlyjs()
    return PackedScript(base64.b64encode(zlib.compress(script.encode())).decode("ascii"), digest(script))
