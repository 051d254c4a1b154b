# SPDX-License-Identifier: GPL-2.0
"""Reads docs/rxe-ci-workflow.yml, for its tests (selftest_workflow.py, ci_test.py)."""
from pathlib import Path

import yaml

FILE = Path(__file__).resolve().parent.parent / "docs/rxe-ci-workflow.yml"


def parse(text):
    """The document as dictionaries, lists and strings: with other loaders the key `on` is a truth value. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=yaml.BaseLoader)


def steps(text=None):
    """The steps of all jobs, in their order."""
    return [step for job in parse(text or FILE.read_text())["jobs"].values() for step in job["steps"]]


def commands():
    """The commands of the steps by the names of these."""
    return {step["name"]: step["run"] for step in steps() if "run" in step}
