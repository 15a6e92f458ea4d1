#!/bin/sh
# The event's body comes on stdin; stdout is the answer; a status other than 0
# is an error.
echo "hello from $FRE_FUNCTION"
cat
