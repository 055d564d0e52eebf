import os
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
ROCM_VERSION = Path(os.environ["ROCM_HOME"], ".info", "version").read_text()
JIT_FOLDER = Path(os.environ.get("AITER_JIT_DIR", PACKAGE / "jit"), "build")
JIT_FOLDER.mkdir(exist_ok=True)


class Configs:
    @property
    def AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE_FILE(self):
        return self._file("AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE", "a8w8_bpreshuffle_tuned_gemm")

    @property
    def AITER_CONFIG_GEMM_A8W8_BLOCKSCALE_MXSCALE_BPRESHUFFLE_FILE(self):
        return self._file(
            "AITER_CONFIG_GEMM_A8W8_BLOCKSCALE_MXSCALE_BPRESHUFFLE", "a8w8_blockscale_mxscale_bpreshuffle_tuned_gemm"
        )

    def _file(self, variable, stem):
        files = os.environ.get(variable, "").split(os.pathsep)
        if len(files) != 1 or not files[0]:
            raise RuntimeError(f"merging the tables of {stem} would rewrite them")
        return files[0]


AITER_CONFIGS = Configs()
