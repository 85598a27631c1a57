"""What the layers of a model of one's own show before it runs: what a run would not do as they say."""

from __future__ import annotations

import chainer


def require_one_path(model: chainer.Link) -> None:
    """Refuse a parameter, or a layer with persistent values, that is registered twice: it would be updated twice.

    Raises:
        ValueError: names both paths.
    """
    named = [(path, parameter) for path, parameter in model.namedparams()]
    named += [(path, link) for path, link in model.namedlinks() if link._persistent]
    first: dict[int, str] = {}
    for path, each in sorted(named, key=lambda pair: pair[0]):
        if (other := first.setdefault(id(each), path)) != path:
            raise ValueError(
                f"{path} is also {other}, and would be updated twice; register the layer once and call it twice, or "
                "give its parameter to a function of chainer.functions"
            )
