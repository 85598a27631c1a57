"""The library's recipe on ImageNet trains on a folder in ImageNet's form."""

import json

import numpy as np
import pytest
from PIL import Image

CLASSES = ("n01440764", "n01443537", "n02105855", "n15075141")
CHANGES = (
    "dataset=four.yaml",
    "model={kind: SmallResNet, width: 4}",
    "batch={global: 8, norm_span: 4}",
    "learning_rate.warmup=null",
)


@pytest.mark.mpi
def test_two_ranks_train_and_evaluate_it_on_classes_of_jpegs(tmp_path, kilobatch):
    draws = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for name in CLASSES:
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (260, 300, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{name}_{number}.JPEG")
    facts = "name: imagenet\nchannels: 3\nmean: [0.485, 0.456, 0.406]\nstd: [0.229, 0.224, 0.225]\n"
    (tmp_path / "four.yaml").write_text(f"{facts}reader: {{kind: ImageFolder}}\nroot: images\n")

    def output(*words, ranks=None):
        done = kilobatch(*words, ranks=ranks, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    changes = [word for change in CHANGES for word in ("--set", change)]
    output("train", "goyal2017", "--stop-after", "2up", "--no-report", "--out", "run", *changes, ranks=2)
    assert "updates 0 to 2 of 180" in (tmp_path / "run" / "log.txt").read_text()
    losses = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in losses if line["key"] == "train_loss"] == [0, 1]
    actual = json.loads(output("evaluate", "run", "--json"))
    assert actual["num_samples"] == 8
    assert np.isfinite(actual["loss"])
