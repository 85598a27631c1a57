"""What lies in files, whatever their names say."""

import os
import subprocess
import sys

import pytest
from PIL import Image

from trainers.datasets import ImageFolder
from trainers.datasets.samples import evenly


@pytest.fixture
def root(tmp_path):
    """Two splits of two classes; the third path of `val` is free."""
    for name in ("train/a/1.png", "train/b/1.png", "val/a/1.png", "val/a/2.png", "val/b/9.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 9)).save(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP"])
@pytest.mark.parametrize("more", [b"", b"more"])
def test_whole_images_pass_the_look_whatever_their_name_or_what_is_behind_them(root, kind, more):
    path = root / "val" / "b" / "1.jpg"
    Image.new("RGB", (12, 9), (200, 100, 50)).save(path, kind)
    path.write_bytes(path.read_bytes() + more)
    samples = ImageFolder().open(root, "eval")
    samples.require_readable(2)
    assert samples[2][0].shape == (9, 12, 3)


def test_the_look_reads_no_more_than_the_ends_of_a_whole_file(root):
    """What lies between takes the time: 1.3 million images are looked at before a run."""
    path = root / "val" / "b" / "1.jpg"
    Image.effect_noise((12, 9), 50).convert("RGB").save(path, "PNG")
    written = path.read_bytes()
    path.write_bytes(written[:100] + bytes(len(written) - 120) + written[-20:])
    samples = ImageFolder().open(root, "eval")
    samples.require_readable(2)
    with pytest.raises(ValueError, match="not a readable image"):
        samples[2]


def test_no_other_program_is_started_for_an_image(root, tmp_path, monkeypatch):
    """Pillow knows EPS by its first bytes, not by its name, and has Ghostscript draw it."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\nexit 1\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    Image.new("RGB", (12, 9)).save(root / "val" / "b" / "1.jpg", "EPS")
    samples = ImageFolder().open(root, "eval")
    for read in (samples.__getitem__, samples.require_readable):
        with pytest.raises(ValueError, match="it is no JPEG, PNG, BMP, GIF or WEBP"):
            read(2)
    assert not (tmp_path / "started").exists()


def test_dropped_transparency_is_no_reason_to_complain(root):
    Image.linear_gradient("L").convert("P").save(root / "val" / "b" / "1.png", transparency=bytes(range(256)))
    code = "from pathlib import Path; from trainers.datasets import ImageFolder as F\n"
    code += f"print(F().open(Path({str(root)!r}), 'eval')[2][0].shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(256, 256, 3)\n", "")


def test_evenly_spaced_indices_reach_over_all_samples():
    assert evenly(10, 3) == [0, 3, 6]
    assert evenly(2, 3) == [0, 1]
