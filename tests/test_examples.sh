#!/usr/bin/env bash
# The examples that read standard input: every question is answered, every line goes on, and a model
# that is not there is an error.
set -euo pipefail
cd "$(dirname "$0")"
model=golden/models/llama-text
CHAT=$QUIPU_BUILD/tests/example_chat BATCH=$QUIPU_BUILD/tests/example_batch
said=$(printf 'hello\nand again\n' | "$CHAT" $model)
[ "$(grep -c '^> ' <<<"$said")" = 3 ] || { echo "chat: $said"; exit 1; }
said=$(printf 'the cat\na dog\n\nthe sun\na tree\nthe sea\nthe end\n' | "$BATCH" $model)
for line in "the cat" "a dog" "the sun" "a tree" "the sea" "the end"; do
    [ "$(grep -c "^$line" <<<"$said")" = 1 ] || { echo "batch: $line is not in: $said"; exit 1; }
done
for program in "$CHAT" "$BATCH"; do
    ! said=$("$program" nosuch.gguf </dev/null 2>&1) || { echo "$program has opened nothing"; exit 1; }
    [[ $said == *"nosuch.gguf"* ]] || { echo "$program: $said"; exit 1; }
done
