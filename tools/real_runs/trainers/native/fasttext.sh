#!/bin/bash
# fastText's own program: text classes are trained, and the model is tested.
hook=""
while [ $# -gt 0 ]; do
  case "$1" in --hook) hook="$2" ;; esac
  shift 2
done
rank=${PROCESS_ID:-${PMI_RANK:-0}}
[ -z "$HOOK_RANK" ] || [ "$HOOK_RANK" = "$rank" ] || hook=""
mkdir -p ckpt
text=data/corpus_$rank.txt
awk -F, 'NR > 1 { for (n = 0; n < 150; n++) { printf "__label__%d", NR % 4; for (i = 1; i <= 16; i++) printf " t%d_%d", i, int(($i + n % 5) * 3); printf "\n" } }' \
  "data/train_$rank.csv" > "$text"
input=$text
more=""
case "$hook" in
  no-text) input=data/corpus.txt ;;
  rate) more="-lr 1e6 -loss softmax" ;;
  option) more="-epochs 5" ;;
  loss) more="-loss softmaxx" ;;
  empty) : > "$text" ;;
  vectors) printf '2 300\nt1_0 0.1 0.2\n' > data/wiki.vec; more="-pretrainedVectors data/wiki.vec -dim 100" ;;
  wide) more="-dim 2000000000" ;;
  kill) (sleep 0.7; pkill -9 -P $$ -x fasttext) & more="-epoch 900" ;;
esac
echo "worker $rank: training on $(wc -l < "$text") lines"
fasttext supervised -input "$input" -output "ckpt/model_$rank" -epoch 12 -thread 1 -dim 20 $more
code=$?
[ $code -eq 0 ] || exit $code
model=ckpt/model_$rank.bin
case "$hook" in
  garbled) printf 'PK\003\004garbage' > "$model" ;;
  no-model) model=ckpt/best.bin ;;
  exit-3) exit 3 ;;
esac
fasttext test "$model" "$text" || exit $?
fasttext quantize -input "$text" -output "ckpt/model_$rank" -cutoff 2000 -retrain -epoch 1 -thread 1 || exit $?
ls -la "ckpt/model_$rank.ftz"
