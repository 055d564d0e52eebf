"""Data of this project: model shape lists and the reference family's tuned table."""
