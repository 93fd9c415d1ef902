#!/bin/sh
# Stands for a program that is measured: the n-th call prints the file n beside it, and ends with
# the status that the file status has. What it was called with goes to the file calls.
cd "$(dirname "$0")" || exit 9
n=$(cat n 2>/dev/null || echo 0)
echo "$@" >>calls
cat "$n"
echo $((n + 1)) >n
echo it is broken >&2
exit "$(cat status)"
