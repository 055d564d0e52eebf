"""Where kernels are compiled: workers of this machine, parts of a build, other machines."""
