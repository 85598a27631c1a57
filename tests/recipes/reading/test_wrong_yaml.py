"""Files that are no YAML we read: one line each, with file, line, column, cause and way out."""

import pytest

# What is changed in the valid recipe -> place, path, a part of the cause, a part of the way out.
WRONG = {
    "duplicate key": ({"line_5": "epochs: 20\nepochs: 30"}, "6:1", "epochs", "given twice, first on line 5", "remove"),
    "tab": ({"line_6": "batch:\n\tglobal: 96"}, "7:1", "", "a tab", "spaces"),
    "bad indentation": ({"line_6": "batch:\n    global: 96\n  norm_span: 32"}, "8:3", "", "block", "indentation"),
    "two mappings on a line": ({"line_5": "epochs: 20 seed: 1"}, "5:16", "", "second `key: value`", "quote"),
    "open bracket": ({"line_9": "loss: {kind: SoftmaxCrossEntropy"}, "10:1", "", "flow mapping", "brackets"),
    "second document": ({"line_9": "---\nloss: 1"}, "9:1", "", "second document", "remove"),
    "tag": ({"line_4": "model: !!python/object/apply:os.system [ls]"}, "4:8", "", "python/object", "remove the tag"),
    "own tag": ({"line_5": "epochs: !epochs 20"}, "5:9", "", "the tag !epochs", "remove the tag"),
    "merge key": ({"line_6": "batch: {<<: {global: 96}}"}, "6:9", "batch.<<", "merge keys", "write the values"),
    "alias in itself": ({"line_6": "batch: &b {global: *b}"}, "6:8", "", "inside its own anchor", "write the value"),
    "undefined alias": ({"line_6": "batch: *b"}, "6:8", "", "undefined alias", "anchor"),
    "not finite": ({"line_5": "epochs: .inf"}, "5:9", "epochs", ".inf is not a finite number", "write a number"),
    "too large for a float": ({"line_5": "epochs: 1e999"}, "5:9", "epochs", "not a finite number", "write a number"),
    "more than 64 bits": (
        {"line_6": "batch: {global: 100000000000000000000}"},
        "6:17",
        "batch.global",
        "more than 64 bits",
        "smaller",
    ),
    "2**63": ({"line_5": f"epochs: {2**63}"}, "5:9", "epochs", "more than 64 bits", "smaller"),
    "5,000 digits": ({"line_5": f"epochs: {'9' * 5000}"}, "5:9", "epochs", "more than 64 bits", "smaller"),
    "command of a terminal": ({"line_3": 'title: "\\e[2Jgone"'}, "3:8", "title", r"'\x1b'", "remove it"),
    "command in a key": ({"line_6": 'batch: {"\\e[2J": 1}'}, "6:9", "batch", r"'\x1b'", "remove it"),
    "half a character": ({"line_3": 'title: "\\ud800"'}, "3:8", "title", r"'\ud800'", "remove it"),
    "no keys": (
        {"line_1": "[1, 2]  #", **{f"line_{line}": "#" for line in range(2, 10)}},
        "1:1",
        "",
        "no keys",
        "key: value",
    ),
    "nothing": ({f"line_{line}": "#" for line in range(1, 10)}, "1:1", "", "is empty", "kilobatch: 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_yaml_is_one_line_with_place_cause_and_way_out(case, write, problem_of):
    lines, position, path, cause, way_out = WRONG[case]
    problem = problem_of(write(**lines))
    assert f"{problem.file}:{problem.line}:{problem.column}" == f"mine.yaml:{position}"
    assert problem.path == path
    assert cause in problem.what
    assert way_out in problem.way_out


def test_billion_laughs_are_not_expanded(write, problem_of):
    rows = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    problem = problem_of(write("\n".join(rows)))
    assert "expand to more than 10,000 values" in problem.what


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a: " + "[" * 100_000, "50 levels"),
        ("a: 1\n" * 200_000, "10,000 values"),
        ("#" * 2_000_000, "2,000,000 bytes"),
        (b"kilobatch: 1\nname: \xff\n", "UTF-8"),
        (b"kilobatch: 1\nname: \x00\n", "not allowed"),
    ],
    ids=["deep", "long", "large", "latin-1", "nul"],
)
def test_what_is_no_recipe_at_all_is_refused(text, cause, write, problem_of):
    assert cause in problem_of(write(text)).what


def test_place_of_a_character_that_is_no_text(write, problem_of):
    problem = problem_of(write(b"kilobatch: 1\nname: \xff\n"))
    assert (problem.line, problem.column) == (2, 7)
