#!/bin/sh
# replace-etcd-data.sh DATA NEW OLD MARK JUNK: puts DATA/NEW/member into the place of DATA/member by renaming. A member with the
# file MARK, from an interrupted restore, goes by way of DATA/JUNK; any other is kept in DATA/OLD.
set -eu
umask 077
data=$1 new=$1/$2 old=$1/$3 mark=$4 junk=$1/$5
[ ! -e "$data/member/$mark" ] || mv "$data/member" "$junk"
[ ! -d "$data/member" ] || { mkdir -p "$old"; mv "$data/member" "$old/"; }
mv "$new/member" "$data/"
rmdir "$new"
sync "$data"
rm -rf "$junk"
