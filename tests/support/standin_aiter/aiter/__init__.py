import logging
import os

logger = logging.getLogger("aiter")
if os.environ.get("AITER_AOT_IMPORT") != "1":
    raise ImportError("the stand-in is imported for ahead-of-time compiling only")

from .jit import core as core  # noqa: E402
