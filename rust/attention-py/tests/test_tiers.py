"""Which instructions the vectorised rung takes: those of the call, else of the environment, else the widest."""

import os
import subprocess
import sys

import numpy as np
import pytest

import rosetta_attention_rs as ra

# No processor has both families of instructions.
FOREIGN = "avx2" if "neon" in ra.simd_tiers() else "neon"


def test_tiers():
    q = np.zeros((1, 1, 1, 1))
    with pytest.raises(
        ra.InvalidConfig, match="sdpa: tier: expected avx512, avx2, neon or portable, got sse9"
    ):
        ra.sdpa_simd(q, q, q, tier="sse9")
    x, cu = np.zeros((1, 1, 1)), np.array([0, 1])
    with pytest.raises(ra.InvalidConfig, match="expected avx512, avx2, neon or portable, got sse9"):
        ra.varlen_simd(x, x, x, cu, cu, tier="sse9")
    assert ra.varlen_simd(x, x, x, cu, cu, tier="portable").output.shape == (1, 1, 1)
    assert ra.simd_tiers()[-1] == "portable"
    with pytest.raises(ra.Unsupported, match=f"tier.{FOREIGN} is not offered here"):
        ra.sdpa_simd(q, q, q, tier=FOREIGN)
    error = ra.Unsupported("tier.avx512")
    assert (error.code, error.feature) == ("unsupported", "tier.avx512")


ASK = """
import numpy as np, rosetta_attention_rs as ra
x = np.sin(np.arange(96.0)).reshape(1, 2, 6, 8)
print(ra.sdpa_simd(x, x, x).output.tobytes() == ra.sdpa_simd(x, x, x, tier="portable").output.tobytes())
ra.sdpa_simd(x, x, x, tier="portable")
"""


@pytest.mark.parametrize(
    ("forced", "error"),
    [
        ("portable", ""),
        ("sse9", "InvalidConfig: sdpa: tier: expected avx512, avx2, neon or portable"),
        (FOREIGN, f"Unsupported: tier.{FOREIGN} is not offered here"),
    ],
)
def test_the_environment_forces_a_tier(forced, error):
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "ROSETTA_SIMD_TIER": forced},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (asked.stdout.strip(), asked.returncode) == (("", 1) if error else ("True", 0))
    assert error in asked.stderr
