"""What Spark says when something fails, in one line: our error at the bottom of it, or its first sentence."""

from __future__ import annotations

import re
from typing import Final

from heliograph import errors
from heliograph.errors import ConfigError, HeliographError

_OURS: Final = re.compile(r"heliograph\.errors\.([A-Za-z]+): (.*)")
_CAUSE: Final = re.compile(r"^(?:Caused by: )?[\w.$]*?(\w+(?:Error|Exception)): (.*)", re.MULTILINE)


def explained(error: Exception) -> HeliographError:
    """What somebody should read instead of a page.

    >>> explained(RuntimeError("Job aborted …\\n  heliograph.errors.NotFound: there is no channel 'x'\\n  at …"))
    NotFound("there is no channel 'x'")
    """
    if isinstance(error, HeliographError):
        return error
    text = str(error)
    found = _OURS.findall(text)
    if found:
        kind, said = found[-1]
        return getattr(errors, kind, HeliographError)(said.strip())
    first = text.strip().partition("\n")[0]
    if type(error).__name__ in {"AnalysisException", "ParseException"}:
        return ConfigError(f"Spark does not accept the pipeline: {first}")
    if not type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
        return HeliographError(f"the pipeline failed: {type(error).__name__}: {first} (--verbose shows all of it)")
    causes = _CAUSE.findall(text)
    deepest = f": {causes[-1][0]}: {causes[-1][1]}" if causes and causes[-1][1] not in first else ""
    return HeliographError(f"Spark failed: {first}{deepest} (--verbose shows all of it)")
