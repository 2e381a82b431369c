"""photofinish: is a GPU worth it for this training job, and is the model the same?"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `steps` or `report` at their first use. By name, as few stages run them."""
    from importlib import import_module

    if name == "steps":
        return import_module("photofinish.scripts.timed_steps").steps
    if name == "report":
        return import_module("photofinish.report")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
