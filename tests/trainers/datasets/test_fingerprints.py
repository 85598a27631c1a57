"""Fingerprints stay what they were: caches and the records of runs hold them."""

import numpy as np

from trainers.datasets import Arrays, Synthetic
from trainers.datasets.fingerprints import sha256_of_parts


def test_parts_are_hashed_with_their_lengths_as_ever():
    assert sha256_of_parts(["a", b"bc", "\udcff", ""]) == (
        "01e652d865ff420b53b7961dc748025037d3502d060c0f26c5fedfd758886dd7"
    )
    assert sha256_of_parts(["a", "bc"]) != sha256_of_parts(["ab", "c"])


def test_readers_have_the_fingerprints_that_recorded_runs_have(tmp_path):
    for split, count in (("train", 3), ("val", 2)):
        images_NHWC = np.arange(count * 12, dtype=np.uint8).reshape(count, 2, 2, 3)
        np.save(tmp_path / f"{split}_images.npy", images_NHWC)
        np.save(tmp_path / f"{split}_labels.npy", np.arange(count))
    assert Synthetic().fingerprint(None) == "bead4f6388d74122610a4b3a84117ec6029e46b1db739813ade8e5f96ed9d731"
    assert Arrays().fingerprint(tmp_path) == "4cd83824718b56cf37a8abaff2c4d999930dfb5066436e12083130dee504e259"
