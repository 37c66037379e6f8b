"""Measured profiles that scenarios include: `service: {profile: resnet50.service.yaml}`, `pcie: {profile: ...}`.

A profile is a YAML file with a section of the name of the key that includes it, as `hetsim calibrate` writes it.  What
stands beside `profile` in the scenario takes the place of the same key of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, ValidationInfo

from sim.errors import ScenarioError
from sim.model.units import shown
from sim.scenario import document
from sim.scenario.fields import KeyProblem
from sim.scenario.problems import translate


def included(value: Any, section: str, model: type[BaseModel], info: ValidationInfo) -> Any:
    """The mapping with what its `profile` says; KeyProblem for a file that is no such profile."""
    if not isinstance(value, dict) or value.get("profile") is None:
        return value
    named = value["profile"]
    if not isinstance(named, str) or not named:
        raise KeyProblem("profile", f"expected the name of a file, not {shown(named)}")
    path = Path((info.context or {}).get("base", ".")) / named
    try:
        read = document.read(path)
    except ScenarioError as error:
        raise KeyProblem("profile", str(error.problems[0])) from None
    found = read.data.get(section)
    if not isinstance(found, dict):
        raise KeyProblem("profile", f"{path} has no section {section}:, as profiles of hetsim calibrate have")
    if "profile" in found:
        raise KeyProblem("profile", f"{path} includes another profile; only scenarios do")
    try:
        model.model_validate(found, context={"base": str(path.parent)})
    except ValidationError as error:
        raise KeyProblem("profile", str(translate(error, read, model, (section,))[0])) from None
    return {**found, **value}
