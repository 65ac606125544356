#!/bin/sh
# Makes the secrets of docker-compose.yml, each in a file of deploy/compose/secrets; those that are there stay.
# The containers' users read them through mounts; on the host, only you enter the folder.
set -eu
umask 077
folder=$(cd "$(dirname "$0")" && pwd)/secrets
mkdir -p "$folder"
random() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }
keep() {
    [ -s "$folder/$1" ] || printf '%s' "$2" >"$folder/$1"
    chmod 444 "$folder/$1"
}
keep admin-token "$(random)"
keep metrics-token "$(random)"
keep postgres-password "$(random)"
keep grafana-password "$(random)"
keep tokens "admin:$(cat "$folder/admin-token"),read:$(cat "$folder/metrics-token")"
keep database-url "postgresql://diagnoser:$(cat "$folder/postgres-password")@postgres/diagnoser"
echo "$folder"
