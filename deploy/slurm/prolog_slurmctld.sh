#!/bin/sh
# For sites that run no agent: tells the service that a job starts, and on which nodes. slurm.conf:
# PrologSlurmctld=/etc/slurm/prolog_slurmctld.sh (restart slurmctld). With a token of scope ingest the service learns of the start; one of scope
# agent may name the nodes as well. The token is in a file that only SlurmUser may read. It never holds up a job.
DIAGNOSER_URL=${DIAGNOSER_URL:-https://diagnoser.example}
DIAGNOSER_TOKEN_FILE=${DIAGNOSER_TOKEN_FILE:-/etc/diagnoser/token}
CLUSTER=${SLURM_CLUSTER_NAME:-main}
# slurmctld kills the process group of a hook that has ended: what is sent is sent from a session of its own. With its
# time, since the end of a short job may be told first.
if [ -z "${DIAGNOSER_DETACHED:-}" ]; then
    DIAGNOSER_DETACHED=$(date +%s) setsid sh -c '"$0" </dev/null >/dev/null 2>&1 &' "$0"
    exit 0
fi
id="slurm-$CLUSTER-$SLURM_JOB_ID"

token=""
[ -r "$DIAGNOSER_TOKEN_FILE" ] && token=$(cat "$DIAGNOSER_TOKEN_FILE")
send() {
    printf 'header = "Authorization: Bearer %s"\n' "$token" | curl --silent --show-error --config - --max-time 5 --retry 2 \
        --header 'Content-Type: application/json' --data "$2" "$DIAGNOSER_URL/api/v1/$1"
}
nodes=$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" | sed 's/.*/"&"/' | paste -s -d , -)
send jobs "{\"id\": \"$id\", \"cluster\": \"$CLUSTER\", \"nodes\": [$nodes]}"
send "jobs/$id/events" "{\"kind\": \"started\", \"time\": $DIAGNOSER_DETACHED}"
exit 0
