#!/bin/sh
# encrypt-secrets.sh DIR KUBECTL...: writes every Secret anew, a page at a time. A page is a file in DIR, because sh does not report
# whether the first command of a pipe failed. A Secret that was changed or deleted since the page was read needs no rewriting.
umask 077
page=$1/secrets-page
shift
rm -f "$page" "$page.said"
trap 'rm -f "$page" "$page.said"' EXIT
next=
while :; do
	"$@" get --raw "/api/v1/secrets?limit=100$next" >"$page" || exit 1
	if head -c 4096 "$page" | grep -q '"items":\[{' && ! "$@" replace --filename="$page" >/dev/null 2>"$page.said"; then
		if grep -v -e '(Conflict)' -e '(NotFound)' -e '^Warning: ' "$page.said" >&2; then exit 1; fi
	fi
	token=$(head -c 4096 "$page" | sed -n 's/"items":.*//; s/.*"continue":"\([^"]*\)".*/\1/p')
	[ -n "$token" ] || exit 0
	next="&continue=$token"
done
