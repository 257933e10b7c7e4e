#!/bin/sh
# Writes .env from .env.example with a secret of its own for each value that reads `drawn`.
# An .env that is there is left alone: the volumes were made with its secrets.
set -eu
cd "$(dirname "$0")"
if [ -e .env ]; then
    echo ".env is there already: delete it, and the volumes made with it, to draw new secrets." >&2
    exit 1
fi
umask 077
while IFS= read -r line; do
    case $line in
        *=drawn) printf '%s=%s\n' "${line%=drawn}" "$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')" ;;
        *) printf '%s\n' "$line" ;;
    esac
done < .env.example > .env.new
mv .env.new .env
echo "Wrote $(pwd)/.env"
