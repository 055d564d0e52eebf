"""The setuptools side of the project."""
