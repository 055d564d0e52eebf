"""Lets this project's build use its own hook, whose entry point setuptools does not see while it builds it."""

import sys
from pathlib import Path

from setuptools import Distribution, setup

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import aiter_flydsl_prebuild  # noqa: E402

# In the source tree two sub-packages lie beside the package; pyproject.toml maps them in.
aiter_flydsl_prebuild.__path__.append(str(HERE))

from aiter_flydsl_prebuild.build_hooks.hook import finalize_distribution_options  # noqa: E402


class OwnDistribution(Distribution):
    """Runs the hook on this project, as the entry point does on others."""

    def finalize_options(self) -> None:
        super().finalize_options()
        finalize_distribution_options(self)


setup(distclass=OwnDistribution)
