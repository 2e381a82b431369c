"""Messages about refused settings. No stage reads this file: a reworded message reruns nothing."""

from __future__ import annotations

from photofinish.errors import SettingError
from photofinish.wording import unknown_name

SIZES = "a fraction between 0 and 1, or a count of at least 1"
_UNKNOWN_CLASS = "unknown class"
_MESSAGES = {
    "arguments": "plan files are JSON, which has no .inf and no .nan: use null in {names}",
    "part size": f"must be {SIZES}",
    "side lengths": "must be a side length from 1 to 4096, or a list of height and width",
    "no part": f"this key is required: {SIZES}. Write 0 for no validation",
    "own part": "this source has its own {part} part: remove this key",
    "mean without std": "give both mean and std, each with a number for every channel",
    "place": "give either path, or parts with a path for each part",
    "threads": "must be 'auto' (all cores this process may use) or a count from 1 to 1024",
    "duration": "must be a number with s, min or h, such as 10 min",
    "gpu count": "must be 'all', or a count of at least 1",
    "ids without data_parallel": "device_ids and output_device need strategy: data_parallel",
    "id twice": "device_ids names a GPU twice",
    "ids and count": "device_ids names {ids} GPUs, but count is {count}: remove count",
    "constant": "a constant schedule has no {names}: remove it",
    "plateau each step": "reduce_on_plateau follows the validation loss, so remove `every: step`",
    "plateau of a maximum": "reduce_on_plateau follows the validation loss, so remove `mode: max`",
    "no weight decay": "weight_decay_exclude needs an optimizer of torch.optim with weight_decay",
    "mode": "is {name} better where it is larger (max) or smaller (min)?",
    "metric twice": "two metrics have the same name: rename one, as in `as: top5`",
    "metric name": "MLflow doesn't accept the name `{name}`: use letters, digits, _ . / -",
    "init": "must be one of {names}, or conv and linear, each with such a name or {{normal: 0.01}}",
    "weights": "there are no such weights; allowed: {names}",
}


def message_of(error: ValueError) -> str:
    """Return the message about a refused setting."""
    if not isinstance(error, SettingError):
        return str(error)
    if error.kind == _UNKNOWN_CLASS:
        return f"{unknown_name(**error.facts)}, or custom code as file.py:Name"
    return _MESSAGES[error.kind].format(**error.facts)
