#!/bin/sh
# A program for `quipu ops improve rms_norm`: each answer follows from what it reads about the last
# one.
page=$(cat)
case $page in
*"verdict: PASSED"*) cat ../examples/rms_norm.c ;;
*"verdict: INCORRECT_NUMERICAL"*) printf 'This one is right:\n\n```c\n' && cat ../examples/rms_norm.c && printf '```\n' ;;
*"verdict: COMPILE_ERROR"*) cat kernels/model_none.c | sed 's/64 + (float)call->params\[0\]/64/' ;;
*) cat kernels/broken_syntax.c ;;
esac
