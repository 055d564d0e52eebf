"""The installed AITER as a source of kernels: its tables, its op wrappers, its dispatch.

AITER differs from state to state; everything here looks for what is there, never at a version.

* :mod:`.installed` - where AITER is, which one, what it has (without importing it)
* :mod:`.tables` - the files that its look-ups read, and private copies for its own reader
* :mod:`.standins` - importing it without GPU and hipcc; the whole list of what is replaced
* :mod:`.ops` - each op: look-up, heuristic, kernel wrapper, whole call (imports AITER)
* :mod:`.ahead` - AITER's own ahead-of-time jobs, for every other kind of kernel
* :mod:`.probe` - a process that imports AITER to answer what a plan needs
* :mod:`.source` - all of it behind :class:`..base.Source`
"""
