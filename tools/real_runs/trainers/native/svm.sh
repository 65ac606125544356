#!/bin/bash
# The programs of LIBLINEAR and LIBSVM: scale, cross-validate, train, predict.
hook=""
while [ $# -gt 0 ]; do
  case "$1" in --hook) hook="$2" ;; esac
  shift 2
done
rank=${PROCESS_ID:-${OMPI_COMM_WORLD_RANK:-0}}
[ -z "$HOOK_RANK" ] || [ "$HOOK_RANK" = "$rank" ] || hook=""
mkdir -p ckpt
table=data/part_$rank.libsvm
awk -F, 'NR > 1 { printf "%d", NR % 3; for (i = 1; i <= 16; i++) printf " %d:%s", i, $i; printf "\n" }' "data/train_$rank.csv" > "$table"
rates="0.1 1 10"
model=ckpt/svm_$rank.model
case "$hook" in
  no-table) rm "$table" ;;
  bad-row) sed -i '58s/:/;/' "$table" ;;
  order) sed -i '58s/ 3:/ 9:/' "$table" ;;
  parameter) rates="0" ;;
  read-only) model=/proc/svm.model ;;
esac
for rate in $rates; do
  echo "part $rank: cross-validation with C=$rate"
  liblinear-train -c $rate -v 4 "$table" || exit $?
done
case "$hook" in
  option) liblinear-train -c 1 -z 4 "$table" "$model" || exit $? ;;
  solver) liblinear-train -c 1 -s 99 "$table" "$model" || exit $? ;;
  exit-3) exit 3 ;;
esac
svm-train -b 1 -c 10 "$table" "$model" || exit $?
case "$hook" in
  garbled) printf 'svm_type c_svcc\n' > "$model" ;;
  no-model) model=ckpt/best.model ;;
esac
svm-predict -b 1 "$table" "$model" "ckpt/predicted_$rank" || exit $?
echo "part $rank: predictions in ckpt/predicted_$rank"
