#!/bin/sh
# add-keys.sh HOME: adds the lines of its input to ~/.ssh/authorized_keys that are not there. It runs as the user: what is in a
# user's home may be links of the user's making.
umask 077
mkdir -p "$1/.ssh" && cd "$1/.ssh" && touch authorized_keys || exit 1
while IFS= read -r key; do
	grep -qxF -e "$key" authorized_keys || printf '%s\n' "$key" >>authorized_keys || exit 1
done
