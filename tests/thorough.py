"""How much of some tests is done: a part in `make test`, all of it with `THOROUGH=1 make test`, as before a release."""

import os

THOROUGH = os.environ.get("THOROUGH", "0") != "0"
