#!/bin/sh
# Starts sshd in a mount namespace of its own, with users that only it knows. Its settings are in the environment.
set -e
mkdir -p "$DIR/etc"
cp -a /etc/. "$DIR/etc"
mount --bind "$DIR/etc" /etc
for u in kktest-pw kktest-free kktest-none; do
	useradd --no-create-home --home-dir "$DIR" --shell "$LOGIN_SHELL" "$u"
	printf '%s:%s\n' "$u" "$PASSWORD" | chpasswd
done
usermod --shell "$LOGIN_SHELL" root
rm -f /etc/sudoers.d/*
echo 'kktest-pw ALL=(ALL:ALL) ALL' >/etc/sudoers.d/kktest
echo 'kktest-free ALL=(ALL:ALL) NOPASSWD: ALL' >>/etc/sudoers.d/kktest
printf '%s\n' "$SUDOERS" >>/etc/sudoers.d/kktest
chmod 440 /etc/sudoers.d/kktest
mkdir -p /run/sshd
for d in $PRIVATE; do mount -t tmpfs none "$d"; done
eval "$SETUP"
exec /usr/sbin/sshd -D -e -f "$DIR/sshd_config"
