"""What is written as YAML is read as what it was."""

import pytest

from recipes.reading.load import resolved_text
from recipes.reading.yaml import block_text, flow_text, parse_yaml
from recipes.search_space.open_search import assignments

TEXTS = [
    "x",
    "5e-2",
    "1e5",
    "-.5e3",
    "12",
    "1.",
    "on",
    "null",
    "1:30",
    "a: b",
    "a #b",
    "\u00fc",
    "\u2028",
    "",
    "\\ud83d",
]
TEXTS += ["\U0001f600", "rate: \U0001f600", "#\U0001f600\U0010ffff", "\\\\ud83d\U0001f600", "<<", "=", "~", "- a", '"']
NUMBERS = [0, 12, -3, 1e-5, 5e-324, 1e300, 0.1, True, None, 2**63 - 1]


def read(text):
    def plain(node):
        if isinstance(node.value, dict):
            return {key: plain(inner) for key, inner in node.value.items()}
        return [plain(inner) for inner in node.value] if isinstance(node.value, list) else node.value

    return plain(parse_yaml(text.encode(), file="x.yaml"))


@pytest.mark.parametrize("value", [*TEXTS, *NUMBERS], ids=ascii)
def test_every_writer_writes_what_is_read_as_the_same_value(value):
    tree = {"name": value, "inner": [{"deep": value}]}
    assert read(flow_text(tree)) == tree
    assert read(block_text(tree)) == tree
    assert read(resolved_text(tree, {"name": "here", "inner": "there"})) == tree
    path, _, text = assignments({"title": value})[0].partition("=")
    assert (path, read(text)) == ("title", value)
    assert type(read(block_text(tree))["name"]) is type(value)
