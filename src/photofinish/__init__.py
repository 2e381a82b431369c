"""photofinish: is a GPU worth it for this training job, and is the model the same?"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `steps` when a script uses it. By name, as no stage but `script` runs it."""
    if name != "steps":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("photofinish.scripts.timed_steps").steps
