"""What is embedded in the page, safely: scripts by their digest, data as JSON, and the plotting library.

Module names, notes and file names in a post-mortem are hostile input. The templates escape them; if one slips through,
the content security policy still runs no script whose digest is not listed, and blocks every request.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import orjson

from megatron_nanguard.printable import printable

INSIDE_SCRIPT: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(frozen=True)
class PackedScript:
    """A script that the page unpacks when it opens.

    Attributes:
        packed: the script, deflated and in base64.
        digest: digest of the unpacked script, for the content security policy.
    """

    packed: str
    digest: str


def digest(text: str) -> str:
    """Return the digest that names an inline script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def content_policy(scripts: Iterable[str]) -> str:
    """Write the content security policy of the page.

    Args:
        scripts: digests of all scripts that may run.
    """
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(scripts),
        # plotly.js creates style elements; without requests a style cannot leak anything.
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def json_island(data: object) -> str:
    """Write data as JSON for a script element, with the characters escaped that could end the element."""
    return orjson.dumps(_printable(data)).decode().translate(INSIDE_SCRIPT)


def plotting_library() -> PackedScript:
    """Read plotly.js from the installed `plotly` package, and pack it.

    plotly ships its script inside its wheel, so nothing is fetched and nothing is copied into this repository. It draws
    heat maps with gaps, log scales and annotated graphs as SVG, and works under a policy that forbids `eval`. Deflated,
    its 4.8 MB take a third of that.
    """
    # Imported here, so that `nanguard report` without a page does not need plotly.
    from plotly.offline import get_plotlyjs

    script = get_plotlyjs()
    return PackedScript(base64.b64encode(zlib.compress(script.encode())).decode("ascii"), digest(script))


def _printable(data: object) -> object:
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {_printable(key): _printable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_printable(value) for value in data]
    return data
