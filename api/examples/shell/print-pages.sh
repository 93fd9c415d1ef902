#!/bin/sh
# Prints as many pages as the step's input says, {"pages": 10}. It notes each page, so that the
# next attempt goes on after the last one, wherever this one ends:
#
#	leasehold worker --capability print/v1 -- api/examples/shell/print-pages.sh
set -eu
pages=$(sed 's/[^0-9]//g')                         # the input comes on stdin
page=$(sed 's/[^0-9]//g' "$LEASEHOLD_CHECKPOINT")  # empty if there is none
page=${page:-0}
from=$((page + 1))
while [ "$page" -lt "$pages" ]; do
	sleep 1 # the work
	page=$((page + 1))
	echo "{\"checkpoint\": {\"page\": $page}, \"progress\": $(awk "BEGIN { print $page / $pages }"), \"message\": \"page $page\"}" >&3
done
echo "{\"printed_from\": $from, \"to\": $pages}"
