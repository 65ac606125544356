#!/bin/sh
# Takes from the environment in $1 what a running service never reads: tests, sources, archives and symbols of compiled modules,
# translations, dialects of databases that it does not speak, and interfaces of clients that it does not use.
set -eu
packages=$(echo "$1"/lib/python3*/site-packages)
find "$packages" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
find "$packages" -type f \( -name '*.c' -o -name '*.h' -o -name '*.pyx' -o -name '*.pyi' -o -name '*.a' \) -delete
rm -rf "$packages/numpy/f2py" "$packages/numpy/distutils" "$packages/apprise/i18n" "$packages/confluent_kafka/schema_registry"
rm -rf "$packages/sqlalchemy/testing" "$packages/alembic/testing"
for interface in admin beta live realtime; do  # the model is asked for chats alone
    rm -rf "$packages/openai/types/$interface" "$packages/openai/resources/$interface"
done
rm -f "$packages"/zstandard/_cffi*.so  # its second way into the library, for PyPy
# Tracebacks are coloured as Python or as text; there are lexers for 300 more languages.
find "$packages/pygments/lexers" -type f ! -name __init__.py ! -name _mapping.py ! -name python.py ! -name special.py -delete
find "$packages/sqlalchemy/dialects" -mindepth 1 -maxdepth 1 -type d \
    ! -name sqlite ! -name postgresql ! -name __pycache__ -exec rm -rf {} +
# Not the libraries that wheels carry in *.libs: what mended their paths leaves them so that strip breaks them.
find "$packages" -name '*.so' ! -path '*.libs/*' -exec strip --strip-unneeded {} +
