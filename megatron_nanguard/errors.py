"""What can go wrong, as a tree; the command line maps each branch to one exit code.

NanguardError
├── SettingsError      an option or a value the user gave
│   └── DrillError     a drill specification; the message shows the position
├── PatchDeclined      a Megatron function is missing, or differs from the versions that this package knows
├── ReplayError        a step cannot be run again, or not as it ran the first time
└── PostmortemError    a file of a run cannot be read, or is not what it should be
"""

from __future__ import annotations


class NanguardError(Exception):
    """Base of everything this package raises on purpose."""


class SettingsError(NanguardError, ValueError):
    """An option has a value that cannot be used: names the option, the value and what is allowed."""


class DrillError(SettingsError):
    """A drill specification cannot be read, or plants nothing in this model."""


class PatchDeclined(NanguardError):
    """A patch point was not applied: says which target, why, and what is lost without it."""


class ReplayError(NanguardError):
    """A replay asks for what the step did not have: the data or the state of the first pass is not there."""


class PostmortemError(NanguardError):
    """A file of a run is missing, unreadable or does not have the shape its schema says."""
