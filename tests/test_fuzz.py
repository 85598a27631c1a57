"""Mutated recipes, data sets, clusters and searches through the command line: each is taken or refused in lines."""

import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kilobatch
from recipes.errors import InputRefused, RecipeError

ROOT = Path(__file__).parent.parent
SEED = 22
QUICK, CHUNK = 30, 1000  # cases of the default suite, and of one of the ten slow tests
SECONDS = 2.0  # on the CPU
PAPERS = ("digits/baseline", "digits/ramp", "digits/large_batch", "goyal2017", "smith2017/cifar10_grow", "ffcv2022")
PAPERS += ("you2019", "hoffer2017/regime_adaptation", "suzuki2018", "mlperf/lars_32768")
FILES = {
    "recipe": [ROOT / "recipes" / "papers" / f"{name}.yaml" for name in PAPERS],
    "dataset": sorted((ROOT / "configs" / "datasets").glob("*.yaml")),
    "cluster": sorted((ROOT / "configs" / "clusters").glob("*.yaml")),
    "search": sorted((ROOT / "configs" / "searches").glob("*.yaml")),
}
KINDS = ("recipe",) * 6 + ("dataset", "cluster", "search")
# Exit codes beside 0 and 2: `lint` has found something, `diff` a difference.
COMMANDS = {
    "recipe": [
        (("recipes", "validate", "FILE"), ()),
        (("recipes", "lint", "FILE"), (5,)),
        (("recipes", "show", "FILE"), ()),
        (("recipes", "curve", "FILE"), ()),
        (("recipes", "card", "FILE"), ()),
        (("recipes", "card", "FILE", "-o", "card.md"), ()),
        (("recipes", "diff", "FILE", "digits/baseline"), (1,)),
        (("recipes", "scale", "FILE", "--batch", "512", "-o", "scaled.yaml"), ()),
        (("plan", "FILE", "-n", "2"), ()),
    ],
    "dataset": [
        (("recipes", "validate", "user.yaml"), ()),
        (("recipes", "curve", "user.yaml"), ()),
        (("plan", "user.yaml", "-n", "2"), ()),
    ],
    "cluster": [
        (("plan", "digits/baseline", "--cluster", "FILE"), ()),
        (("recipes", "lint", "digits/baseline", "--cluster", "FILE"), (5,)),
    ],
    "search": [(("search", "FILE", "--dry-run"), ())],
}
VALUES = (
    *("0", "-1", "1", "2", "1e-320", "1e308", "-0.0", "9223372036854775807", "99999999999999999999", "0.1", "1e5"),
    *("4096", "1000000000", "true", "null", "", "~", "[]", "{}", "[1, 2]", "[[1]]", "{a: 1}", "{kind: 3}", "''"),
    *(
        '"\\e[31m"',
        '"\\0"',
        "\u202e",
        "'é😀'",
        "x" * 3000,
    ),
    *("5up", "30ep", "1.5Msp", "0.5run", "-3up", "99999999999999up"),
    *(
        "1e99ep",
        "run",
        "auto",
        "none",
        "linear",
        "digits",
        "imagenet",
        "cifar10",
    ),
    *("[0.1, 0.1]", "[true]", "{kind: Sgd}"),
    *(
        "{kind: Cosine}",
        "{kind: MomentumSGD}",
        "{kind: Lars}",
        "{kind: os.system}",
    ),
    *("{kind: planted.Net}", "planted.Net"),
    *("{kind: MultiStep, boundaries: [1, 2], factor: 0}", "{kind: Float, low: 0, high: 0, log: true}"),
    *("[{from: 0, size: 96}, {from: 1, size: 192}]", "[{frm: 0, size: 96}, {from: 1, size: 192}, {from: 2, size: 9}]"),
    *("[{from: 1, size: 0}]", "!!python/object/apply:os.system ['touch ran']", "!!binary aGk=", "!x 3", "*nobody"),
    *(
        "&a [*a, *a]",
        "../../../../etc/passwd",
        "/etc/passwd",
        "../outside.yaml",
    ),
    *("recipe.yaml", "user.yaml", "2017-06-08"),
    *("0x10", "1_000", ".nan", "-.inf", "1:30", "<<", "|\n  text", "[", "}", "'", '"', "@", "`", "%", "- -", "? :"),
    *("<script>alert(1)</script>", "[x](javascript:x)", "$\\frac{", "$x^{$", "{{}}", "%s%n", "\\\\host\\share", "CON"),
)
LAUGHS = "\n".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
LINES = (
    "!!python/object/apply:os.system ['touch ran']: 1",
    "model: !!python/object/new:os.system ['touch ran']",
    f"a: &a [1]\n{LAUGHS}",
    *("extends: ../outside.yaml", "extends: recipe.yaml", "extends: /etc/passwd", "extends: goyal2017", "extends: [a]"),
    *("model: {kind: os.system, command: touch ran}", "model: {kind: planted.Net}", "root: ../..", "root: /etc"),
    *(
        "lacks: [Lars, SmallCNN, Nothing]",
        "lacks: 3",
        "open: [a.b]",
        "assumed: [seed, '']",
    ),
    *("name: ../x", "kilobatch: 2"),
    *("--- ", "...", "\t- a", "? [a]\n: b", "<<: {a: 1}", "extensions: [{kind: WeightNorms}]", "image_size: 7"),
    "image_size: [{from: 0, size: 8}, {from: 1, size: 12}]",
    "batch: {global: 8192, norm_span: [{from: 0, size: 32}, {from: 3, size: 64}]}",
)
PLACE = re.compile(r"\S.*:\d+:\d+: \S")


def mutated(text, random_):
    """The text with one to four mistakes or attacks in it."""
    for _ in range(random_.choice((1, 1, 1, 2, 2, 3, 4))):
        text = random_.choice((other_value, other_value, other_value, mistyped_key, other_lines, other_lines, torn))(
            text, random_
        )
    return text


def other_value(text, random_):
    place = random_.choice([*re.finditer(r"(?<=: )[^,{}\[\]\n#]+|(?<=[\[ ])[-\w.]+(?=[,\]])", text), None])
    return text if place is None else text[: place.start()] + random_.choice(VALUES) + text[place.end() :]


def mistyped_key(text, random_):
    place = random_.choice([*re.finditer(r"\w+(?=:)", text), None])
    if place is None:
        return text
    at = random_.randrange(place.start(), place.end())
    return text[:at] + random_.choice(("", "x", "_", text[at] * 2)) + text[at + 1 :]


def other_lines(text, random_):
    lines = text.split("\n")
    at = random_.randrange(len(lines))
    match random_.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(random_.randrange(len(lines)), lines[at])
        case 2:
            lines[at] = random_.choice((" ", "  ", "\t", "- ")) + lines[at]
        case 3:
            lines[at] = lines[at].lstrip()
        case 4:
            lines.insert(at, random_.choice(LINES))
    return "\n".join(lines)


def torn(text, random_):
    """With one more character somewhere, or cut there."""
    at = random_.randrange(len(text) + 1)
    more = random_.choice(("\x00", "\x1b[2J", "\ufeff", "\u2028", *"{]:#'&*0-"))
    return text[:at] if random_.random() < 0.2 else text[:at] + more + text[at:]


def case(number):
    """Files and command of a case: {file: text}, arguments, and its exit codes beside 0 and 2."""
    random_ = random.Random(f"{SEED} {number}")
    kind = random_.choice(KINDS)
    source = random_.choice(FILES[kind])
    data = mutated(source.read_text(encoding="utf-8"), random_).encode("utf-8", "surrogatepass")
    if random_.random() < 0.02:
        data = data.replace(b"e", b"\xff", 1)
    command, codes = random_.choice(COMMANDS[kind])
    files = {f"{kind}.yaml": data}
    if kind == "dataset":
        files["user.yaml"] = b"kilobatch: 1\nextends: digits/baseline\ndataset: dataset.yaml\n"
    return files, [f"{kind}.yaml" if word == "FILE" else word for word in command], (0, 2, *codes)


def faults(numbers, folder):
    """What went wrong: a line for each case."""
    found = []
    for number in numbers:
        files, arguments, codes = case(number)
        for old in folder.glob("*.yaml"):
            old.unlink()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        start = time.process_time()
        result = CliRunner().invoke(kilobatch.app, arguments)
        seconds = time.process_time() - start
        found += [f"{number} {' '.join(arguments)}: {fault}" for fault in judged(result, codes, seconds)]
        if (folder / "ran").exists():
            found.append(f"{number}: code was run")
            (folder / "ran").unlink()
    return found


def judged(result, codes, seconds):
    """What is wrong with the end of a command."""
    error, code, message = result.exception, result.exit_code, result.stderr
    if isinstance(error, InputRefused):
        message, code = str(error), 2
        for line in message.split("\n") if isinstance(error, RecipeError) else ():
            if not PLACE.match(line):
                yield f"without its place: {line}"
    elif error is not None and not isinstance(error, SystemExit):
        yield f"{type(error).__name__}: {error}"
    if code not in codes:
        yield f"exit code {code}"
    if code == 2 and not message.strip():
        yield "refused without a word"
    if seconds >= SECONDS:
        yield f"{seconds:.1f} s"
    if re.search(r"[\x00\x1b]", result.stdout + message):
        yield "a control character reaches the terminal"
    if re.search("SECRET_OUTSIDE|root:x:0", result.stdout + message):
        yield "a file outside was read"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module that must never be imported, below one with a file that must not be read."""
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "outside.yaml").write_text("kilobatch: 1\nname: SECRET_OUTSIDE\n")
    (inside / "planted.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(inside)
    return inside


def test_a_mutated_file_is_taken_or_refused_in_lines_and_runs_no_code(folder):
    assert not faults(range(QUICK), folder)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, CHUNK))
def test_ten_thousand_mutated_files_are_taken_or_refused(first, folder):
    assert not faults(range(first, first + CHUNK), folder)


@pytest.mark.slow
def test_the_program_itself_takes_or_refuses_mutated_files(folder):
    """What the tests above leave out: the front door, and whatever an earlier case has imported."""
    for number in range(10_000, 10_040):
        files, arguments, codes = case(number)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        line = [sys.executable, str(ROOT / "kilobatch.py"), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode in codes, (number, arguments, done.stderr)
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        assert not (folder / "ran").exists()
