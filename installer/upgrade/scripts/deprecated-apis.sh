#!/bin/sh
# deprecated-apis.sh KUBECTL...: prints the API server's counters of requests to deprecated APIs, at most 200. Its other metrics
# are many megabytes.
set -eu
"$@" get --raw=/metrics | grep '^apiserver_requested_deprecated_apis{' | head -n 200 || true
