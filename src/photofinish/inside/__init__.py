"""Code that runs in a user's process: the recorder of a script's training, and counts of its steps.

A script's Python may lack photofinish. So these files import the standard library, each other, and
torch once the script has imported it. `run_script.py` copies them beside a `sitecustomize.py`.
"""
