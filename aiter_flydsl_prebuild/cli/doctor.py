"""``doctor``: what a build needs, what is there, and how to get the rest."""

from __future__ import annotations

import argparse

from .result import Result

HELP = "what a build needs, what is there, and how to get the rest"
INTERRUPTED = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments."""


def run(args: argparse.Namespace) -> Result:
    """Examine this machine."""
    from ..builder import doctor

    findings = doctor.examine()
    ok = doctor.ok(findings)
    return Result({"ok": ok, "findings": doctor.to_json(findings)}, lambda: doctor.render(findings), ok=ok)
