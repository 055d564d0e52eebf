"""The reference source: a small MXFP8 GEMM family of this project's own, written in FlyDSL for gfx950.

It computes what AITER's raw-scale MXFP8 op computes, on the same operands, so that planning, compiling, packing,
seeding and proving can be tried, and tested, where AITER is not installed.

* :mod:`dispatch.reference_names` - kernel names and what they may say
* :mod:`.kernel` - the FlyDSL kernel (imports FlyDSL)
* :mod:`.dispatch` - token count to kernel name to launch, what a server calls (imports FlyDSL and torch)
"""
