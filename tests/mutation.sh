#!/bin/sh
# Changes what moves machines a little, again and again, and says which changes the nearest tests do not notice:
#   tests/mutation.sh FOLDER [SHARE]
# FOLDER: where it works (an environment with mutmut, a copy of the code). SHARE: of the 6,000 changes, 0.05 by default:
# the same ones each time, of every module at least ten. Takes about 5 s of one core for each, and is in no other test.
# Then: cd FOLDER/code && ../env/bin/mutmut show NAME
set -eu
folder=$1 share=${2:-0.05}
mkdir -p "$folder/code"
pytest=$(.venv/bin/python -c 'import pytest; print(pytest.__version__)')
[ -x "$folder/env/bin/mutmut" ] || { python3 -m venv "$folder/env"; "$folder/env/bin/pip" install -q mutmut==3.8.1 "pytest==$pytest"; }
# Everything else the environment takes from .venv.
echo "$PWD/$(echo .venv/lib/python3*/site-packages)" > "$(echo "$folder"/env/lib/python3*/site-packages)/project.pth"
cp -r diagnoser tests rules prompts deploy docs pyproject.toml README.md CHANGELOG.md Makefile requirements "$folder/code"
cd "$folder/code"
cat > setup.cfg <<END
[mutmut]
source_paths=diagnoser
only_mutate=
    diagnoser/planning/*.py
    diagnoser/recovery/*.py
    diagnoser/worker/*.py
    diagnoser/compress/delta.py
    diagnoser/agent/executor.py
also_copy=
$(ls -d rules prompts deploy docs README.md CHANGELOG.md Makefile requirements | sed 's/^/    /')
pytest_add_cli_args=
    -p
    no:xdist
    -k
    not postgresql
pytest_add_cli_args_test_selection=
$(ls tests/unit/test_recovery_*.py tests/unit/test_planning_*.py tests/unit/test_worker*.py tests/unit/test_agent_executor*.py \
     tests/unit/test_compress_merge.py tests/unit/test_compress_digest.py tests/unit/test_web_plans.py tests/unit/test_web_recovery.py \
     tests/contract/test_plans.py tests/contract/test_bad_checkpoints.py tests/contract/test_retention.py | sed 's/^/    /')
END
mutmut="nice -n 19 ../env/bin/mutmut run --max-children 1"
$mutmut 'diagnoser.recovery.trust.x_is_vouched*' > /dev/null  # makes all of them, and runs a few
$mutmut $(python3 - "$share" <<'END'
import glob, json, random, sys

rng = random.Random(30)
for path in sorted(glob.glob("mutants/diagnoser/**/*.meta", recursive=True)):
    names = sorted(json.load(open(path)).get("exit_code_by_key", {}))
    print(*rng.sample(names, min(len(names), max(10, round(float(sys.argv[1]) * len(names))))))
END
)
