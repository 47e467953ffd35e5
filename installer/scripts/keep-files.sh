#!/bin/sh
# keep-files.sh DIR LINKED... -- COPIED...: keeps files below DIR, under their whole paths. LINKED become links where that is
# possible, because they are replaced and never changed. DIR's parent loses everything else.
set -e
dir=$1
shift
rm -rf "${dir%/*}"
mkdir -p "$dir"
chmod 0700 "${dir%/*}" "$dir"
link=--link
for p; do
	if [ "$p" = -- ]; then link=; continue; fi
	[ -e "$p" ] || continue
	mkdir -p "$dir${p%/*}"
	if [ -n "$link" ] && cp --archive --link "$p" "$dir$p" 2>/dev/null; then continue; fi
	cp --archive --force "$p" "$dir$p"
done
: >"$dir/complete"
