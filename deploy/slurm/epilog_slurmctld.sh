#!/bin/sh
# For sites that run no agent: tells the service how a job ended. slurm.conf: EpilogSlurmctld=/etc/slurm/epilog_slurmctld.sh
# (restart slurmctld). The token, of scope ingest, is in a file that only SlurmUser may read. It never holds up the controller.
DIAGNOSER_URL=${DIAGNOSER_URL:-https://diagnoser.example}
DIAGNOSER_TOKEN_FILE=${DIAGNOSER_TOKEN_FILE:-/etc/diagnoser/token}
CLUSTER=${SLURM_CLUSTER_NAME:-main}

# slurmctld kills the process group of a hook that has ended: what is sent is sent from a session of its own.
if [ -z "${DIAGNOSER_DETACHED:-}" ]; then
    DIAGNOSER_DETACHED=1 setsid sh -c '"$0" </dev/null >/dev/null 2>&1 &' "$0"
    exit 0
fi

# SLURM_JOB_EXIT_CODE2 is "code:signal"
code=${SLURM_JOB_EXIT_CODE2%%:*}
signal=${SLURM_JOB_EXIT_CODE2##*:}
end="\"code\": ${code:-1}"
[ "${signal:-0}" -gt 0 ] 2>/dev/null && end="\"signal\": $signal"

token=""
[ -r "$DIAGNOSER_TOKEN_FILE" ] && token=$(cat "$DIAGNOSER_TOKEN_FILE")
printf 'header = "Authorization: Bearer %s"\n' "$token" | curl --silent --show-error --config - --max-time 5 --retry 2 \
    --header 'Content-Type: application/json' --data "{\"kind\": \"exit\", $end}" \
    "$DIAGNOSER_URL/api/v1/jobs/slurm-$CLUSTER-$SLURM_JOB_ID/events"
exit 0
