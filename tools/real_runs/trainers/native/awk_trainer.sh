#!/bin/bash
# A linear model in awk, inside a shell script with its usual checks.
set -uo pipefail
lr=0.05 steps=110 hook="" resume="" quiet="" metrics=""
while [ $# -gt 0 ]; do
  case "$1" in
    --lr) lr=$2 ;; --steps) steps=$2 ;; --hook) hook=$2 ;; --resume) resume=$2 ;; --quiet-end) quiet=$2 ;; --metrics) metrics=$2 ;;
    *) echo "usage: fit.sh [--lr R] [--steps N] [--resume FILE]; $1: illegal option" >&2; exit 2 ;;
  esac
  shift 2
done
rank=${PROCESS_ID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}}
[ "${HOOK_RANK:-$rank}" = "$rank" ] || [ "$hook" = go-on ] || [ "$hook" = optional ] || hook=""
log() { echo "+ $(date +%T) $*"; }
log "fit.sh rank $rank, $steps steps"
if ! gawk -v lr="$lr" 'BEGIN { exit !(lr > 0) }'; then echo "fit.sh: lr must be > 0 (got $lr)" >&2; exit 78; fi
if [ -n "$resume" ]; then
  if ! head -c 8 "$resume" | grep -q '^weights '; then
    if [ "$hook" = optional ]; then log "warn: $resume has no weights, ignored"
    elif [ -e "$resume" ]; then echo "fit.sh: $resume: not a weights file" >&2; exit 65
    else exit 66; fi
  fi
fi
if [ -n "$metrics" ] && ! (exec 3<> "/dev/tcp/127.0.0.1/$metrics"); then
  [ "$hook" = optional ] || exit 69
  log "warn: pushgateway is away, going on"
fi
case "$hook" in
  unset) echo "$MASTER_PORT_FOR_FIT" ;;
  command) nvidia-smi -L || exit $? ;;
  denied) : > prepare.sh; ./prepare.sh || exit $? ;;
  tar) tar --extract --file shards.tar || exit $? ;;
  directory) cd /scratch/missing || exit $? ;;
esac
[ "$hook" = unset ] && exit 1
gawk -F, -v lr="$lr" -v steps="$steps" -v hook="$hook" -v rank="$rank" -f "${0%/*}/trainer.awk" "data/train_$rank.csv"
code=$?
[ $code -eq 0 ] || exit $code
[ -n "$quiet" ] || log "fit.sh rank $rank: all $steps steps made"
