"""Values as YAML text that `parse_yaml` reads as what they were."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

__all__ = ["block_text", "flow_text"]

_PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")


def flow_text(value: Any) -> str:
    """A value in a line, as JSON; but a character beyond 16 bits as itself, since YAML does not join JSON's escapes.

    >>> flow_text({"title": "caf\u00e9 \U0001f600"})
    '{"title": "caf\\\\u00e9 \U0001f600"}'
    """
    return _PAIR.sub(lambda pair: json.loads(f'"{pair[0]}"'), json.dumps(value))


def block_text(tree: Any) -> str:
    """Plain data as a file of YAML.

    >>> block_text({"name": "5e-2", "epochs": 2})
    "name: '5e-2'\\nepochs: 2\\n"
    """
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Puts quotes around a text that PyYAML, of version 1.1, takes for text, and version 1.2 for a number: `5e-2`."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
