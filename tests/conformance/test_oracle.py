"""The oracle of the matrix: it knows a few results by heart, and rejects what is wrong by little."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from conformance_oracle import NUMPY, REDUCTIONS, Expected, bits, fold, inputs
from conformance_ranks import Hang, Ranks

from hccl_py.core.types import DType, ReduceOp


def test_it_knows_some_results_by_heart() -> None:
    half = [np.array([60000], np.float16)] * 3
    assert fold(DType.FLOAT16, ReduceOp.AVG, half)[0] == 60000
    assert np.isinf(fold(DType.FLOAT16, ReduceOp.SUM, half)[0])
    # added in float32 and rounded once: rounding after each step would stay at 256
    brain = [np.array([value], ml_dtypes.bfloat16) for value in (256, 1, 1)]
    assert fold(DType.BFLOAT16, ReduceOp.SUM, brain)[0] == 258
    assert fold(DType.INT8, ReduceOp.SUM, [np.array([100], np.int8)] * 2)[0] == -56
    assert fold(DType.BOOL, ReduceOp.SUM, [np.array([True]), np.array([True])])[0]
    assert np.isnan(fold(DType.FLOAT32, ReduceOp.MAX, [np.array([1], np.float32), np.array([np.nan], np.float32)])[0])


@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_it_takes_the_result_and_rejects_another(dtype: DType, op: ReduceOp, canonical: bool) -> None:
    given = inputs(dtype, op, 100, 4)
    expected = Expected(dtype, op, given)
    result = fold(dtype, op, given)
    assert expected.check(result, canonical) == ""
    assert expected.check(np.roll(result, 3), canonical, shift=3) == ""
    if dtype.is_float:
        result[50] = ml_dtypes.finfo(NUMPY[dtype]).max
    else:
        bits(result)[50] ^= 1
    assert "first [50]" in expected.check(result, canonical)


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float])
def test_canonical_means_every_bit_and_free_means_some(dtype: DType) -> None:
    given = inputs(dtype, ReduceOp.SUM, 100, 4)
    expected = Expected(dtype, ReduceOp.SUM, given)
    result = fold(dtype, ReduceOp.SUM, given)
    bits(result)[7] ^= 1
    assert expected.check(result, canonical=True) != ""
    assert expected.check(result, canonical=False) == ""


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PROD])
def test_a_lost_or_doubled_contribution_is_rejected_for_free_plans(dtype: DType, op: ReduceOp) -> None:
    given = inputs(dtype, op, 1000, 7)
    expected = Expected(dtype, op, given)
    assert expected.check(fold(dtype, op, [*given[:6], given[5]]), canonical=False) != ""


def test_a_rank_that_does_not_return_is_a_failure() -> None:
    with Ranks("loopback", 2) as ranks, pytest.raises(Hang, match="rank 0 is at"):
        ranks.run(lambda comm: comm.barrier() if comm.rank == 0 else None, timeout_s=0.5)
