#!/bin/sh
# Counts lines and words with what the shell has built in.
lines=0
words=0
while read -r line || [ -n "$line" ]; do
	lines=$((lines + 1))
	# shellcheck disable=SC2086 # the shell's own splitting counts the words
	set -f -- $line
	words=$((words + $#))
done
echo "$lines lines, $words words"
