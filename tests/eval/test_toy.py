"""The toy language: the article's tables, its exact law, and the distances measured with it."""

import jax
import numpy as np
import pytest
import scipy.stats

from eval import distance, toy
from specjax import testing


def test_the_tables_are_the_article_s() -> None:
    target, draft = toy.tables()
    kept = np.minimum(target, draft).sum(1)
    assert [f"{value:.3f}" for value in kept] == ["0.672", "0.692", "0.856", "0.863"]
    for table in (target, draft):
        np.testing.assert_allclose(table.sum(1), 1, rtol=1e-12)


def test_the_joint_is_the_product_along_each_sequence() -> None:
    target = toy.tables().target
    law = toy.joint(target)
    assert len(law) == 256
    np.testing.assert_allclose(law.sum(), 1, rtol=1e-12)
    sequence = [2, 0, 3, 1]
    chance = target[0, 2] * target[2, 0] * target[0, 3] * target[3, 1]
    assert toy.outcomes([sequence])[0] == 2 * 64 + 0 * 16 + 3 * 4 + 1
    np.testing.assert_allclose(law[toy.outcomes([sequence])[0]], chance, rtol=1e-12)


def test_the_bigram_model_is_a_target() -> None:
    testing.check_target(toy.bigram(), toy.log_table(toy.tables().target))
    assert toy.bigram() is toy.bigram()


def test_row_keys_do_not_depend_on_how_rows_are_batched() -> None:
    whole = toy.row_keys(0, 0, 6)
    parts = [toy.row_keys(0, 0, 4), toy.row_keys(0, 4, 2)]
    data = [jax.random.key_data(keys).tolist() for keys in (whole, *parts)]
    assert data[0] == data[1] + data[2]


def test_total_variation() -> None:
    assert distance.total_variation(np.array([5, 5, 0]), np.array([0.5, 0.25, 0.25])) == 0.25
    rng, law = np.random.default_rng(0), toy.joint(toy.tables().target)
    seen = [distance.total_variation(rng.multinomial(20_000, law), law) for _ in range(50)]
    assert np.mean(seen) == pytest.approx(distance.expected_total_variation(law, 20_000), rel=0.02)


def test_chi_square_is_scipy_s_where_nothing_is_pooled() -> None:
    law, counts = np.array([0.1, 0.2, 0.3, 0.4]), np.array([120, 190, 330, 360])
    want = scipy.stats.chisquare(counts, law * counts.sum()).pvalue
    assert distance.chi_square_p(counts, law) == pytest.approx(want, rel=0.02)
    law = toy.joint(toy.tables().target)
    counts = np.random.default_rng(1).multinomial(10_000_000, law)
    want = scipy.stats.chisquare(counts, law * counts.sum()).pvalue
    assert distance.chi_square_p(counts, law) == pytest.approx(want, rel=0.02)


def test_chi_square_of_what_cannot_be() -> None:
    assert distance.chi_square_p(np.array([99, 1]), np.array([1.0, 0.0])) == 0
    assert distance.chi_square_p(np.array([100, 0]), np.array([1.0, 0.0])) == 1
