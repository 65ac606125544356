"""What a service is set up with, as people may see it."""

from dataclasses import dataclass
from enum import StrEnum


class Origin(StrEnum):
    DEFAULT = "default"
    GIVEN = "given"  # by the environment, a file of a secret, or the command line
    SITE_FILE = "site"  # a file in the site's folder of rules
    SHIPPED_FILE = "shipped"  # the file that comes with the service


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """value: without any secret. about: what it is for."""

    name: str
    value: str
    origin: Origin
    about: str = ""
