#!/usr/bin/env bash
# From users' text to a keyboard's n-gram model, as far as fedgram goes today. Run it by scripts/demo, or: bash FILE FOLDER
set -euo pipefail
out=${1:-demo-output}; language=${2:-en_us}; mkdir -p "$out"; cd "$out"
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1. A population of typists, and a text that a server may see (well cased, other topics)"
fedgram data synthesize --language "$language" --users 1500 --seed 7 -o users.parquet \
  --supplement supplement.txt --sentences 40000 --whitelist whitelist.txt
fedgram data info users.parquet

say "2. Devices send clipped word counts; nobody's text leaves a device"
fedgram unigrams collect --users users.parquet --whitelist whitelist.txt --clip 1000 --devices-per-round 200 \
  --rounds 60 --capacity 5000 -o U.unigrams --plots plots
fedgram pieces train --unigrams U.unigrams --size 1000 -o pieces.model

say "3. A cased model of the server's text, pruned, then fitted to the full one on the n-grams that are left"
fedgram ngram train supplement.txt -o A_W.arpa --order 3 --smoothing modified-kneser-ney
fedgram ngram prune A_W.arpa -o pruned.arpa --max-ngrams 40000
fedgram ngram approximate A_W.arpa pruned.arpa -o fitted.arpa

say "4. The unigrams come from the devices, with capitals put right; new words come in"
fedgram unigrams capitalize U.unigrams A_W.arpa -o cased-unigrams.tsv
fedgram ngram replace-unigrams fitted.arpa cased-unigrams.tsv -o final.arpa

say "5. A network: it starts from the server's text, and learns from devices that send changes of weights"
fedgram data normalize supplement.txt -o normalized.txt
fedgram pretrain normalized.txt --unigrams U.unigrams --preset W_demo --epochs 1 --rows 16 --learning-rate 0.01 \
  -o R0.safetensors
fedgram train --users users.parquet --unigrams U.unigrams --preset W_demo --start R0.safetensors --rounds 20 \
  --clients-per-round 60 --max-sentences 16 --dev-users 20 --evaluate-every 5 -o R.safetensors --plots plots

say "6. How well the models predict what users type who took no part, whatever their capitals"
fedgram evaluate fitted.arpa final.arpa R.safetensors --baseline pruned.arpa --users users.parquet --split test --experiment

say "7. What the final model writes, and how it mends capitals"
fedgram ngram sample final.arpa -n 5 --seed 3
if [ "$language" = en_us ]; then echo "she lives in new york"; else echo "a ana mora em são paulo"; fi | fedgram capitalize A_W.arpa -
fedgram ngram convert final.arpa final.ngram > /dev/null
echo; echo "Everything is in $PWD: final.arpa (KenLM, SRILM, IRSTLM and OpenGrm read it), plots/, U.unigrams, pieces.model"
