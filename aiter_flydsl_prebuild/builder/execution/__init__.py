"""Executing the kernels of a pack: which, in which process, and what is said of the results."""
