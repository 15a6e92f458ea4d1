#!/bin/sh
read -r body
printf 'Status: 201 Created\r\nContent-Type: text/plain\r\n\r\n'
printf '%s %s?%s %s %s' "$REQUEST_METHOD" "$PATH_INFO" "$QUERY_STRING" "$CONTENT_LENGTH" "$body"
