"""The store of kernels, packs and proofs between builds, and the keys of what is in it."""
