"""A cluster's own choices."""

import pytest

from recipes.planning.cluster import Cluster, GradientExchange

SIZES = ("nodes", "workers_per_node", "device_memory_bytes", "micro_batch_size")


@pytest.mark.parametrize(
    ("bucket_bytes", "double_buffering", "sizes"),
    [
        ("auto", False, {40: 256_000, 2_048_000: 256_000, 102_228_128: 12_778_516, 10**9: 32_000_000}),
        ("auto", True, {40: 256_000, 3_000_000: 3_000_000, 10**9: 32_000_000}),  # which hides all: as large as may be
        (1000, False, {10**9: 1000}),
        (1000, True, {10**9: 1000}),
    ],
)
def test_buckets_are_an_eighth_within_bounds_or_of_the_size_given(bucket_bytes, double_buffering, sizes):
    exchange = GradientExchange(bucket_bytes=bucket_bytes)
    for num_bytes, expected in sizes.items():
        assert exchange.bucket_bytes_of(num_bytes, double_buffering=double_buffering) == expected


def test_buckets_of_no_bytes_are_refused():
    with pytest.raises(ValueError, match="bucket_bytes must be auto or at least 1, got 0"):
        GradientExchange(bucket_bytes=0)


def test_a_cluster_has_at_least_one_of_everything():
    least = dict.fromkeys(SIZES, 1)
    assert Cluster(name="one", device="cpu", **least).num_workers == 1
    for name in SIZES:
        with pytest.raises(ValueError, match=rf"Cluster.{name} must be .*at least 1, got 0"):
            Cluster(name="none", device="cpu", **least | {name: 0})
