"""SOURCE_DATE_EPOCH (reproducible-builds.org), read by one rule in ``build`` and in the hook."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ..errors import InputError

FIRST = 315532800
"""1980-01-01, the first time that a ZIP file can hold."""

_LAST = 4354819199  # 2107-12-31 23:59:59
_VARIABLE = "SOURCE_DATE_EPOCH"


def source_date_epoch(environ: Mapping[str, str] = os.environ) -> int | None:
    """The time in seconds since 1970, from 1980 on; None where the variable is not set.

    An earlier time becomes 1980's, as in setuptools (``bdist_wheel``'s ``get_zipinfo_datetime``). A later one than a
    ZIP file can hold would end there in a traceback.

    :raises InputError: it is no whole number, or too late.
    """
    text = environ.get(_VARIABLE)
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]+", text):
        raise InputError(f"{_VARIABLE}={text} is not a whole number of seconds since 1970; set another, or unset it")
    if int(text) > _LAST:
        raise InputError(
            f"{_VARIABLE}={text} is after 2107-12-31 23:59:59 UTC ({_LAST}), the last time that a ZIP file can hold"
        )
    return max(int(text), FIRST)
