"""The files of rules and prompts: the shipped ones, with the site's laid over them file by file and id by id."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from diagnoser.adapters import files
from diagnoser.config.settings import Settings
from diagnoser.model import yaml_loader
from diagnoser.model.errors import BadInput
from diagnoser.model.yaml_loader import StrictModel

DISABLED = "disabled.yaml"
FILTERS = "filters/"
_PATTERNS = ("*.yaml", "*/*.yaml")
_PLACES = ": rules are files CATEGORY/ID.yaml, filters are files filters/NAME.yaml"


class DisabledFile(StrictModel):
    """`disabled.yaml` of a site. rules: ids of rules that never decide. filters: names of files of filters that are
    not used, without their ending."""

    version: Literal[1]
    rules: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleFiles:
    """Path below the folder -> text. used: the site's files, and each shipped one that no file of the site replaces or
    disables. replaced: path of a site's file -> path of the shipped one that it replaces."""

    shipped: Mapping[str, str]
    site: Mapping[str, str]
    disabled: DisabledFile
    replaced: Mapping[str, str]
    used: Mapping[str, str]

    def rules(self) -> dict[str, str]:
        return {path: text for path, text in self.used.items() if rule_id(path)}

    def filters(self) -> dict[str, str]:
        """The files of filters by their names, without the folder."""
        return {path.removeprefix(FILTERS): text for path, text in self.used.items() if path.startswith(FILTERS)}


def laid_over(shipped: Mapping[str, str], site: Mapping[str, str], disabled: DisabledFile) -> RuleFiles:
    """Lay a site's files over the shipped ones: a file replaces the one of its path, and the rule of its id."""
    by_id = {rule_id(path): path for path in shipped if rule_id(path)}
    replaced = {path: by_id[rule_id(path)] for path in site if rule_id(path) in by_id}
    replaced |= {path: path for path in site if path in shipped}
    unused = {*replaced.values(), *(f"{FILTERS}{name}.yaml" for name in disabled.filters)}
    remaining = {path: text for path, text in shipped.items() if path not in unused}
    return RuleFiles(shipped, site, disabled, replaced, {**remaining, **site})


def rule_id(path: str) -> str:
    """The id of the rule that a file holds by its path; "" for filters and tables."""
    if "/" not in path:
        return ""
    if path.startswith(FILTERS):
        return ""
    return path.rpartition("/")[2].removesuffix(".yaml")


def read_rule_files(folder: Path | None) -> RuleFiles:
    """folder: of the site, None where it has none. Raises RuleFaults, and BadInput for what cannot be used."""
    shipped = _shipped()
    if folder is None:
        return laid_over(shipped, {}, DisabledFile(version=1))
    site = folder_texts(folder)
    _check_places(folder, site, shipped)
    disabled = DisabledFile(version=1)
    if DISABLED in site:
        disabled = yaml_loader.load(DISABLED, site.pop(DISABLED), DisabledFile)
    _check_disabled(disabled, (*shipped, *site))
    return laid_over(shipped, site, disabled)


@cache
def _shipped() -> Mapping[str, str]:
    """Read the files that come with this code, once in a process: a start of the service asks for them four times."""
    return folder_texts(files.bundled("rules"))


def folder_texts(folder: Path) -> dict[str, str]:
    """Path below the folder -> text of every file of rules. Folders whose name begins with a dot are left out."""
    texts = dict[str, str]()
    for pattern in _PATTERNS:
        texts |= files.texts(folder, pattern)
    return {path: text for path, text in texts.items() if not path.startswith(".")}


def _check_places(folder: Path, site: Iterable[str], shipped: Iterable[str]) -> None:
    """Raises BadInput for a file that looks as if it was meant to be read, and is not."""
    tables = {path for path in shipped if "/" not in path} | {DISABLED}
    for name in sorted({path for path in site if "/" not in path} - tables):
        hint = "".join(f": did you mean {close}?" for close in get_close_matches(name, tables, 1, 0.8))
        raise BadInput(f"{folder / name} is no table of the rules{hint or _PLACES}")
    for path in sorted((*folder.rglob("*.yaml"), *folder.rglob("*.yml"))):
        place = path.relative_to(folder)
        if place.as_posix() not in site and not place.parts[0].startswith("."):
            raise BadInput(f"{path} is not read{_PLACES}")


def _check_disabled(disabled: DisabledFile, paths: Iterable[str]) -> None:
    """Raises BadInput for a name that nothing bears: a slip, or a rule that an upgrade took away."""
    known = set(paths)
    ids = set(map(rule_id, known))
    unknown = [f"rule {name}" for name in disabled.rules if name not in ids]
    unknown += [f"file {FILTERS}{name}.yaml" for name in disabled.filters if f"{FILTERS}{name}.yaml" not in known]
    if unknown:
        raise BadInput(f"{DISABLED}: there is no {', no '.join(unknown)}; see `diagnoser rules list`")


def site_rules(settings: Settings) -> RuleFiles:
    return read_rule_files(settings.rules_dir)


def prompt_texts(settings: Settings, name: str) -> dict[str, str]:
    """The files of a prompt's version: the site's where it has that version, else the shipped ones. Raises BadInput."""
    folder = files.bundled("prompts") / name
    if settings.prompts_dir is None:
        return files.texts(folder, "*")
    if not settings.prompts_dir.is_dir():
        raise BadInput(f"no such folder: {settings.prompts_dir}")
    own = settings.prompts_dir / name
    return files.texts(own if own.is_dir() else folder, "*")
