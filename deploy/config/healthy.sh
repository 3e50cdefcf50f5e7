#!/bin/bash
# Exit with 0 if a version of a model is available. Usage: healthy.sh MODEL [PORT]. The server's image has no curl.
exec 3<>"/dev/tcp/localhost/${2:-8501}" || exit 1
printf 'GET /v1/models/%s HTTP/1.0\r\n\r\n' "$1" >&3
grep --quiet '"AVAILABLE"' <&3
