"""A cluster's own choices."""

import pytest

from recipes.planning.cluster import Cluster, GradientExchange

SIZES = ("nodes", "workers_per_node", "device_memory_bytes", "micro_batch_size")


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(40, 256_000), (2_048_000, 256_000), (102_228_128, 12_778_516), (10**9, 32_000_000)],
)
def test_auto_buckets_are_an_eighth_within_bounds(num_bytes, expected):
    assert GradientExchange().bucket_bytes_of(num_bytes) == expected


def test_auto_buckets_are_as_large_as_may_be_where_double_buffering_hides_all():
    sizes = [GradientExchange().bucket_bytes_of(bytes_, double_buffering=True) for bytes_ in (40, 3_000_000, 10**9)]
    assert sizes == [256_000, 3_000_000, 32_000_000]


def test_buckets_of_a_size_given_do_not_look_at_the_model():
    assert GradientExchange(bucket_bytes=1000).bucket_bytes_of(10**9) == 1000
    assert GradientExchange(bucket_bytes=1000).bucket_bytes_of(10**9, double_buffering=True) == 1000


def test_buckets_of_no_bytes_are_refused():
    with pytest.raises(ValueError, match="bucket_bytes must be auto or at least 1, got 0"):
        GradientExchange(bucket_bytes=0)


def test_a_cluster_has_at_least_one_of_everything():
    least = dict.fromkeys(SIZES, 1)
    assert Cluster(name="one", device="cpu", **least).num_workers == 1
    for name in SIZES:
        with pytest.raises(ValueError, match=rf"Cluster.{name} must be .*at least 1, got 0"):
            Cluster(name="none", device="cpu", **least | {name: 0})
