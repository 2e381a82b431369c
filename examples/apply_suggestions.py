"""Apply photofinish's suggestions to an experiment, one after another, until none is left.

In the folder of params.yaml: python apply_suggestions.py EXPERIMENT
"""

import json
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML


def answer(experiment):
    subprocess.run(["photofinish", "run"], check=True)
    report = json.loads(Path("report/answers.json").read_text(encoding="utf-8"))
    return report["answers"][experiment]


def apply(suggestion):
    yaml, file = YAML(), Path("params.yaml")
    params = yaml.load(file)
    for name, value in suggestion["settings"].items():
        *path, last = name.split(".")
        block = params
        for key in path:
            block = block.setdefault(key, {})
        block[last] = value
    yaml.dump(params, file)


applied = []
while suggestions := [
    each
    for each in answer(sys.argv[1])["suggestions"]
    if each["learns"] != "something else" and each["line"] not in applied
]:
    apply(suggestions[0])
    applied.append(suggestions[0]["line"])
print(f"Applied: {', '.join(applied) or 'nothing'}")
