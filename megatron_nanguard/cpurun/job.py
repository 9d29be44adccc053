"""What is asked of the import server, and what comes back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

LAST_LINES = "its last lines:"
_RANK_LINE = re.compile(r"\[rank(\d+)\] ?(.*)")


@dataclass(frozen=True)
class Job:
    """One launch.

    Attributes:
        nproc: Number of ranks.
        script: Path of the script.
        args: Its arguments.
        output: File that gets everything printed.
        codes: File that gets the ranks' exit codes.
        cwd: Working directory.
        env: Added to the environment.
        timeout: Seconds until the stacks are printed and the ranks ended.
        linger: Seconds that ranks have to end by themselves once one failed.
        in_rank: `module:function` called in each rank before the script.
    """

    nproc: int
    script: str
    args: list[str]
    output: str
    codes: str
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    timeout: float | None = None
    linger: float = 1.0
    in_rank: str | None = None

    def to_line(self) -> str:
        """The request, without the newline."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Job:
        """The job that was asked for."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Finished:
    """A launch that ended.

    Attributes:
        code: Exit code of the launcher.
        codes: Rank to exit code, of the ranks that ended by themselves.
        out: Everything printed; lines of ranks carry [rankN].
        seconds: From request to reply.
    """

    code: int
    codes: Mapping[int, int]
    out: str
    seconds: float

    def lines(self, rank: int) -> list[str]:
        """What one rank printed; the last lines of a failed one, which the launcher repeats, count once."""
        found = (_RANK_LINE.match(line) for line in self.out.partition(LAST_LINES)[0].splitlines())
        return [match[2] for match in found if match and int(match[1]) == rank]
