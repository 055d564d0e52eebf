"""A stand-in for vLLM 0.33.0's treatment of FlyDSL's cache folder, from its behaviour: see places.vllm_folder."""

import os


def move_cache() -> None:
    """What making a monokernel runner does to the variable: it stays where it names a folder that can be written to."""
    named = os.environ.get("FLYDSL_RUNTIME_CACHE_DIR", "")
    if not (named and os.access(named, os.W_OK)):
        own = os.path.join(os.path.expanduser("~"), ".flydsl", "cache")
        os.makedirs(own, exist_ok=True)
        os.environ["FLYDSL_RUNTIME_CACHE_DIR"] = own
