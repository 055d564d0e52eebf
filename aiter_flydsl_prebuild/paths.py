"""The user's own folders: home, cache and temporary ones. One rule, for all of this project.

XDG base directory specification 0.8: XDG_CACHE_HOME counts only if it is an absolute path, and defaults to ~/.cache.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# tempfile's own order on POSIX, without the working folder.
_TEMPORARY = ("/tmp", "/var/tmp")


def home(environ: Mapping[str, str] = os.environ) -> str | None:
    """The home folder as ``Path.home()`` gives it, absolute or not; None where this user has none."""
    if "HOME" in environ:
        return environ["HOME"].rstrip("/") or "/"
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None


def user_cache(environ: Mapping[str, str] = os.environ) -> str | None:
    """The folder for a user's caches; None where there is neither an absolute XDG_CACHE_HOME nor an absolute home."""
    configured = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(configured):
        return configured
    folder = home(environ) or ""
    return os.path.join(folder, ".cache") if os.path.isabs(folder) else None


def temporary_folders(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The folders for temporary files, best first; a TMPDIR that is not absolute does not count."""
    chosen = environ.get("TMPDIR", "")
    return list(dict.fromkeys((*([chosen] if os.path.isabs(chosen) else []), *_TEMPORARY)))
