"""What a scaled recipe says that it does not promise: all of it that applies, and nothing else."""

import pytest

SUBJECTS = {
    "accuracy:": "accuracy",
    "that the rate is the best": "rate",
    "that linear scaling holds": "linear",
    "that the points hold": "points",
    "that the square root holds for LAMB": "root",
    "that the gradient's noise": "noise",
    "less time:": "time",
}
DIGITS = "kilobatch: 1\nextends: digits/baseline\n"  # 1,500 samples, batch 32
LAMB = DIGITS + "optimizer: {kind: Lamb}\n"
RAMP = DIGITS + "batch: {global: [{from: 0, size: 32}, {from: 1, size: 128}]}\n"


@pytest.mark.parametrize(
    ("name", "text", "batch", "subjects"),
    [
        ("goyal2017/256", None, 8192, ["time"]),
        ("goyal2017", None, 256, []),
        ("goyal2017", None, 16384, ["linear", "time"]),
        ("mlperf/lars_8192", None, 16384, ["points", "time"]),
        ("own.yaml", DIGITS, 150, ["time"]),
        ("own.yaml", DIGITS, 151, ["noise", "time"]),
        ("own.yaml", LAMB, 64, ["root", "time"]),
        ("own.yaml", RAMP, 40, ["noise", "time"]),
        ("own.yaml", RAMP, 31, []),
    ],
)
def test_what_is_not_promised(name, text, batch, subjects, scale):
    made, _ = scale(name, batch, text=text, beyond=True)
    result = [subject for words, subject in SUBJECTS.items() for line in made.not_promised if line.startswith(words)]
    assert len(result) == len(made.not_promised)
    assert result == ["accuracy", "rate", *subjects]
