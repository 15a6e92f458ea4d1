#!/bin/sh
# Reads an address and writes what curl finds out about it, as JSON.
read -r url
curl --silent --max-time 5 --proto =http,https --output /dev/null \
	--write-out '{"exit": %{exitcode}, "status": "%{response_code}", "bytes": %{size_download}}' -- "$url" || :
