"""Execution: run the code objects of a pack, and compare what they compute with a numpy reference.

The process that executes, and the command, are in :mod:`builder.execution`.
The layers, each knowing only those above it:

* :mod:`.faults`, :mod:`.floats` - errors; the number formats of the operands
* :mod:`.memory`, :mod:`.image`, :mod:`.registers` - guarded arrays; loaded code objects; the state of a wave
* :mod:`.scalar`, :mod:`.vector`, :mod:`.vector_memory`, :mod:`.lds`, :mod:`.matrix` - instructions whose semantics are
  this project's
* :mod:`.tinygrad` - every other instruction, from the emulator in a tinygrad source checkout
* :mod:`.program`, :mod:`.machine` - decoding, once per code object; waves, barriers and workgroups
* :mod:`.hip` - the HIP library that FlyDSL's own host code launches into
* :mod:`.problem`, :mod:`.gemm` - operands, references, and the comparison
* :mod:`.launchers` - where kernels run

It imports numpy, and tinygrad and FlyDSL only in the process that executes.
"""
