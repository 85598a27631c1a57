"""The benchmark of the augmentations has a figure for each of them, and a ratio where it names a peer."""

import json
import subprocess
import sys
from pathlib import Path

from trainers import augmentations

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_augmentations.py"
PEERS = {"RandomResizedCrop", "HorizontalFlip", "Resize", "ColorJitter", "PcaLighting"}


def test_every_augmentation_has_a_figure(tmp_path):
    file = tmp_path / "figures.json"
    options = ("--size", "32", "--images", "2", "--rounds", "3", "--json", str(file))
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(file.read_text())
    assert (written["size"], written["images"], written["rounds"]) == (32, 2, 3)
    figures = written["augmentations"]
    assert {name.partition(",")[0] for name in figures} == set(augmentations.__all__)
    assert all(found["images_per_second"] > 0 for found in figures.values())
    with_peers = {name for name, found in figures.items() if found["ratio"] is not None}
    assert PEERS <= with_peers <= PEERS | {"RandAugment", "TrivialAugment"}
    assert all(figures[name]["peer_images_per_second"] > 0 < figures[name]["ratio"] for name in with_peers)
    assert len(done.stdout.splitlines()) == 1 + len(figures)
