#!/bin/sh
# keep-files.sh DIR ROOT LINKED... -- COPIED...: keeps files below DIR, under their paths below ROOT. LINKED become links where that is
# possible, because they are replaced and never changed. DIR's parent loses everything else. The copies of an upgrade are
# complete with the file DIR/complete, which the caller writes.
set -e
dir=$1 root=$2
shift 2
rm -f "${dir%/*}"/*/complete "${dir%/*}"/*/finished # first: what is left of a killed removal is not complete
rm -rf "${dir%/*}"
mkdir -p "$dir"
chmod 0700 "${dir%/*}" "$dir"
link=--link
for p; do
	if [ "$p" = -- ]; then link=; continue; fi
	[ -e "$root$p" ] || continue
	to=$dir/$p
	mkdir -p "${to%/*}"
	if [ -n "$link" ] && cp --archive --link "$root$p" "$to" 2>/dev/null; then continue; fi
	cp --archive --force "$root$p" "$to"
done
sync -f "$dir"
