#!/usr/bin/env bash
# Exit code 0 once the model server answers in JSON schema, 1 when it does not: ready.sh [URL] [SECONDS]
# Key: DIAGNOSER_LLM_API_KEY. Loading weights takes minutes, so this waits.
set -euo pipefail
url=${1:-http://127.0.0.1:8000/v1}
until_=$(($(date +%s) + ${2:-600}))
header="Authorization: Bearer ${DIAGNOSER_LLM_API_KEY:-none}"
until models=$(curl -fsS -m 5 -H @- "$url/models" 2>/dev/null <<<"$header"); do
  [ "$(date +%s)" -lt "$until_" ] || { echo "no answer from $url" >&2; exit 1; }
  sleep 2
done
name=$(grep -o '"id": *"[^"]*"' <<<"$models" | head -1 | cut -d '"' -f 4)
body='{"model": "'$name'", "messages": [{"role": "user", "content": "Is the sky blue?"}], "max_tokens": 200,
 "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": {"type": "object",
 "properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "additionalProperties": false}}}}'
answer=$(curl -fsS -m 60 -H 'Content-Type: application/json' -H "@/dev/fd/3" -d "$body" "$url/chat/completions" 3<<<"$header")
grep -q '\\"yes\\" *:' <<<"$answer" || { echo "$name does not answer by schema" >&2; exit 1; }
echo "$name answers by schema at $url"
