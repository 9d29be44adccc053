"""The plotting library of the page: plotly.js, taken from the installed `plotly` package.

Of the well-kept libraries it alone comes with its script inside a small wheel, so that nothing is fetched and nothing
is copied into this repository; it draws heat maps with gaps, log scales and annotated graphs as SVG, and works under a
content security policy that forbids `eval`. Its 4.8 MB are deflated to a third of that, and the browser inflates them.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

from megatron_nanguard.report.html.embedding import digest


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
