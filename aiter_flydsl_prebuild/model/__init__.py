"""The words of docs/design.md as types: token ranges, shapes, jobs and options. Each has its home and its name here."""
