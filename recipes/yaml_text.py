"""Values as YAML text that `parse_yaml` reads back unchanged."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

__all__ = ["block_text", "flow_text"]

_PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")


def flow_text(value: Any) -> str:
    """A value in a line, as JSON; characters beyond 16 bits unescaped, since YAML does not join surrogate escapes.

    >>> flow_text({"title": "caf\u00e9 \U0001f600"})
    '{"title": "caf\\\\u00e9 \U0001f600"}'
    """
    return _PAIR.sub(lambda pair: json.loads(f'"{pair[0]}"'), json.dumps(value))


def block_text(tree: Any) -> str:
    """Plain data as the text of a YAML file.

    >>> block_text({"name": "5e-2", "epochs": 2})
    "name: '5e-2'\\nepochs: 2\\n"
    """
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Quotes a text such as `5e-2`, which is text to PyYAML (YAML 1.1) and a number in YAML 1.2."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
