"""Measured profiles that scenarios include: `service: {profile: x.service.yaml}`.

A profile is a YAML file of `hetsim calibrate` with a section named like the key that includes it.  Keys next to
`profile` in the scenario replace those of the file.
"""

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError, ValidationInfo, model_validator

from hetsim.errors import KeyProblem, ScenarioError
from hetsim.model.files import record_input
from hetsim.model.units import shown
from hetsim.scenario.fields import Mirror
from hetsim.scenario.file import document
from hetsim.scenario.file.problems import translate


class Profiled(Mirror):
    """A mapping in which a profile of `hetsim calibrate` can supply missing keys."""

    SECTION: ClassVar[str]  # section of the file

    profile: str | None = None
    """File of `hetsim calibrate`, relative to the scenario, that supplies the keys not given here."""

    @model_validator(mode="before")
    @classmethod
    def _with_profile(cls, value: Any, info: ValidationInfo) -> Any:
        return included(value, cls.SECTION, cls, info)


def included(value: Any, section: str, model: type[BaseModel], info: ValidationInfo) -> Any:
    """Add the keys of the file that `profile` names; KeyProblem if it is invalid."""
    if not isinstance(value, dict) or value.get("profile") is None:
        return value
    named = value["profile"]
    if not isinstance(named, str) or not named:
        raise KeyProblem("profile", f"must be the name of a file; got {shown(named)}")
    path = record_input(Path((info.context or {}).get("base", ".")) / named, "profile", named)
    try:
        read = document.read(path, "a profile")
    except ScenarioError as error:
        raise KeyProblem("profile", str(error.problems[0])) from None
    content = read.data.get(section)
    if not isinstance(content, dict):
        raise KeyProblem("profile", f"{path} has no section {section}:; profiles of hetsim calibrate have one")
    if "profile" in content:
        raise KeyProblem("profile", f"{path} includes another profile; only scenarios may include profiles")
    language, wanted = bool(OF_TOKENS & set(content)), "kind" in model.model_fields
    if section == "service" and language and not wanted:
        raise KeyProblem("profile", f"{path} describes a language model; add kind: llm to the service")
    if section == "service" and wanted and not language and "compute" in content:
        raise KeyProblem("profile", f"{path} describes batches, not a language model; leave out kind: llm")
    if section == "service" and wanted and "kind" not in content:
        raise KeyProblem("profile", str(read.problem((section,), "has no kind; a language model needs kind: llm here")))
    try:
        model.model_validate(content, context={"base": str(path.parent), "profile": True})
    except ValidationError as error:
        raise KeyProblem("profile", str(translate(error, read, model, (section,))[0])) from None
    return {**anchored(content, path.parent), **value}


FILES = ("table", "config")  # keys that name files
OF_TOKENS = {"kind", "step", "kv", "engine", "interval"}  # keys that only services of language models have


def anchored(part: Any, folder: Path) -> Any:
    """Return `part` of a file in `folder`, with relative paths made absolute."""
    if isinstance(part, list):
        return [anchored(one, folder) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        key: str((folder / one).resolve()) if key in FILES and isinstance(one, str) else anchored(one, folder)
        for key, one in part.items()
    }
