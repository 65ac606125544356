"""Versioned prompts, `prompts/<name>/v<N>/`: frozen once released; their hash is stored with every answer."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field

from diagnoser.model import yaml_loader
from diagnoser.model.errors import Fault, RuleFaults

PARTS = ("meta.yaml", "system.j2", "user.j2")
REPAIR = "repair.j2"
"""Optional part: what the model is told when its answer could not be read; its one variable is ``fault``."""
SECOND_LOOK = "second_look.j2"
"""Optional part: what is asked behind the question where claims differ; variables: ``claims`` and ``marker``."""
_CHARS_PER_TOKEN = 2.5
"""Cautious: log text is dense in digits and signs."""
# Prompts are plain text for a model, not HTML: log lines must reach it as they are.
_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False)


class Meta(BaseModel):
    """`meta.yaml`. variables: exactly those that the templates use. max_tokens: of the answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    name: str
    version: Annotated[int, Field(ge=1)]
    released: date | None
    purpose: str
    variables: tuple[str, ...]
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=2)]


@dataclass(frozen=True, slots=True)
class Prompt:
    meta: Meta
    system: str
    user: str
    repair: str
    hash: str
    second_look: str = ""

    @property
    def label(self) -> str:
        return f"{self.meta.name}/v{self.meta.version}"

    def render(self, variables: Mapping[str, Any]) -> tuple[str, str]:
        """The system and the user message. An undefined variable raises jinja2.UndefinedError."""
        return _fill(self.system, variables), _fill(self.user, variables)

    def render_repair(self, fault: str) -> str:
        return _fill(self.repair, {"fault": fault})

    def render_second_look(self, claims: Sequence[Mapping[str, object]], marker: str) -> str:
        """claims: each with ``type``, ``line`` (its number in the view or None) and ``text``."""
        return _fill(self.second_look, {"claims": claims, "marker": marker})


def tokens_of(text: str) -> int:
    """About how many tokens a text has, rather too many than too few."""
    return int(len(text) / _CHARS_PER_TOKEN) + 1


def load(folder: str, files: Mapping[str, str]) -> Prompt:
    """Read the prompt of ``folder`` (`<name>/v<N>`) from its parts. Raises RuleFaults with every fault."""
    faults = [Fault(f"{folder}/{part}", 0, "missing") for part in PARTS if part not in files]
    if faults:
        raise RuleFaults(faults)
    prompt_meta, faults = yaml_loader.read(f"{folder}/meta.yaml", files["meta.yaml"], Meta)
    for part in PARTS[1:]:
        faults += _template_faults(f"{folder}/{part}", files[part], prompt_meta.variables if prompt_meta else None)
    faults += _template_faults(f"{folder}/{REPAIR}", files.get(REPAIR, ""), ("fault",))
    faults += _template_faults(f"{folder}/{SECOND_LOOK}", files.get(SECOND_LOOK, ""), ("claims", "marker"))
    if prompt_meta is None:
        raise RuleFaults(faults)
    if folder != f"{prompt_meta.name}/v{prompt_meta.version}":
        faults.append(Fault(f"{folder}/meta.yaml", 0, f"belongs in {prompt_meta.name}/v{prompt_meta.version}"))
    if faults:
        raise RuleFaults(faults)
    repair, second_look = files.get(REPAIR, ""), files.get(SECOND_LOOK, "")
    return Prompt(prompt_meta, files["system.j2"], files["user.j2"], repair, _hash(files), second_look)


def _hash(files: Mapping[str, str]) -> str:
    parts = [files[part] for part in (*PARTS, REPAIR, SECOND_LOOK) if part in files]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _fill(part: str, variables: Mapping[str, Any]) -> str:
    return _ENVIRONMENT.from_string(part).render(variables)


def _template_faults(path: str, text: str, declared: Collection[str] | None) -> list[Fault]:
    """declared: variables that the template may use, None where nobody knows."""
    try:
        used = meta.find_undeclared_variables(_ENVIRONMENT.parse(text))
    except TemplateError as error:
        return [Fault(path, getattr(error, "lineno", 0), str(error))]
    if declared is None:
        return []
    unknown = sorted(used.difference(declared))
    return [Fault(path, 0, f"uses '{name}', which meta.yaml does not list") for name in unknown]
