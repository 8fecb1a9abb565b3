"""JAX Privacy computes the same BLT matrices, sensitivities and errors, and its search finds nothing better."""

import numpy as np
import pytest

from fedgram.privacy.blt import Blt, Participation, prefix_errors, sensitivity
from fedgram.privacy.blt_design import design_blt, max_loss

jax = pytest.importorskip("jax", reason="JAX Privacy is an optional judge: pip install jax-privacy==2.0.0")
pytest.importorskip("jax_privacy", reason="JAX Privacy is an optional judge: pip install jax-privacy==2.0.0")


@pytest.fixture(autouse=True)
def _double_precision() -> None:
    jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize(("rounds", "apart"), [(2000, 400), (2000, 1000), (2000, 2000), (300, 37)])
def test_matrices_and_sensitivities_are_theirs(rounds: int, apart: int) -> None:
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    plan = Participation(rounds, apart)
    ours = design_blt(plan)
    theirs = buffered_toeplitz.BufferedToeplitz.build(buf_decay=list(ours.decay), output_scale=list(ours.scale))
    coefficients = theirs.toeplitz_coefs(rounds)
    assert np.abs(ours.coefficients(rounds) - np.array(coefficients)).max() < 1e-12
    inverse = theirs.inverse()
    assert np.abs(ours.inverse_coefficients(rounds) - np.array(inverse.toeplitz_coefs(rounds))).max() < 1e-10
    squared = toeplitz.minsep_sensitivity_squared(coefficients, apart, plan.most)
    assert sensitivity(ours, plan) == pytest.approx(float(squared) ** 0.5, rel=1e-12)
    error = buffered_toeplitz.max_error(inverse, rounds)  # its square
    assert prefix_errors(ours, rounds)[-1] ** 2 == pytest.approx(float(error), rel=1e-8)


def test_their_search_finds_nothing_better() -> None:
    from jax_privacy.matrix_factorization import buffered_toeplitz

    plan = Participation(300, 60)
    found = buffered_toeplitz.optimize(n=300, min_sep=60, max_participations=5, min_buffers=3, max_buffers=3)
    theirs = Blt(tuple(np.array(found.buf_decay).tolist()), tuple(np.array(found.output_scale).tolist()))
    assert max_loss(design_blt(plan), plan) <= max_loss(theirs, plan) * (1 + 1e-4)
