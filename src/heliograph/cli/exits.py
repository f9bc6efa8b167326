"""Exit codes, and which error means which.

====  ==================================================================================================
code  meaning
====  ==================================================================================================
0     done; also when ``sub``, ``read --follow``, ``stats --watch`` or ``top`` were ended by SIGTERM
1     what was checked is bad (damage found, a message not found by ``get``), or the command failed
2     used wrongly: an unknown option, an impossible name, a wrong setting
3     no such station, channel, subscription, message or file (also of --config)
4     busy: another process has it, or nobody replied in time; try again
5     the storage refused: disk full, read-only, fenced, damaged
6     not equal: after ``sync`` some messages are lacking all the same
130   ended with Ctrl-C
141   whoever read the output went away (as with ``| head``)
143   ended by SIGTERM before it was done
====  ==================================================================================================
"""

from __future__ import annotations

from typing import Final

from heliograph import errors

OK: Final = 0
BAD: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
BUSY: Final = 4
STORAGE: Final = 5
UNEQUAL: Final = 6
INTERRUPTED: Final = 130
OUTPUT_CLOSED: Final = 141
TERMINATED: Final = 143

#: The first that fits counts.
_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (errors.ConfigError, USAGE),
    (errors.InvalidName, USAGE),
    (errors.InvalidMessage, USAGE),
    (errors.WrongStation, USAGE),
    (errors.NotFound, NOT_FOUND),
    (errors.Busy, BUSY),
    (errors.ReplyTimeout, BUSY),
    (errors.StorageError, STORAGE),
    (errors.ReadOnly, STORAGE),
    (errors.UnsupportedFormat, STORAGE),
    (errors.HeliographError, BAD),
    (FileNotFoundError, NOT_FOUND),
    (OSError, STORAGE),
)


def code_of(error: BaseException) -> int:
    """The exit code of an error.

    >>> code_of(errors.SubscriptionBusy("worker-1 is live already")), code_of(errors.DiskFull("full"))
    (4, 5)
    """
    if isinstance(error, errors.ConfigError) and isinstance(error.__cause__, FileNotFoundError):
        return NOT_FOUND  # --config names a file that is not there: nothing in it is wrong
    return next((code for kind, code in _CODES if isinstance(error, kind)), BAD)
