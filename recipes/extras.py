"""How to install the packages of an extra, for messages about one that is missing."""

from __future__ import annotations

from shlex import quote


def install(extra: str) -> str:
    """The command with the names of the packages, for those who installed a wheel, and the one for a checkout.

    >>> install("onnx")
    "pip install 'onnx>=1.16' (in the checkout: pip install '.[onnx]')"
    """
    from importlib.metadata import PackageNotFoundError, requires  # 20 ms

    in_checkout = f"pip install '.[{extra}]'" + (", with CUDA 12 '.[gpu12]'" if extra == "gpu" else "")
    try:
        known = [requirement.split(";") for requirement in requires("kilobatch") or ()]
    except PackageNotFoundError:  # a checkout on Python's path
        return f"in the checkout, {in_checkout}"
    names = [quote(name.strip()) for name, *marker in known if "".join(marker).strip() == f'extra == "{extra}"']
    return f"pip install {' '.join(names)} (in the checkout: {in_checkout})"
