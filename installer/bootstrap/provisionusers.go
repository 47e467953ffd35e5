package bootstrap

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/provision"
	"github.com/kkbundle/kkbundle/installer/task"
)

func provisionGroup(ctx context.Context, t *task.Host, g provision.Group) error {
	there, err := t.Test(ctx, "getent", "group", "--", g.Name)
	if err != nil || there == !g.Remove {
		return err
	}
	if g.Remove {
		return t.Run(ctx, "groupdel", "--", g.Name)
	}
	args := []string{"groupadd"}
	if g.System {
		args = append(args, "--system")
	}
	if g.GID != "" {
		args = append(args, "--gid", g.GID)
	}
	return t.Run(ctx, append(args, "--", g.Name)...)
}

// provisionUser creates a user. An existing user gets the missing groups, keys, rights and password.
func provisionUser(ctx context.Context, t *task.Host, u provision.User) error {
	there, err := t.Test(ctx, "getent", "passwd", "--", u.Name)
	switch {
	case err != nil:
		return err
	case u.Remove && there:
		return t.Run(ctx, "userdel", "--", u.Name)
	case u.Remove:
		return nil
	case !there:
		err = t.Run(ctx, useradd(u)...)
	case len(u.Groups) > 0:
		err = t.Run(ctx, "usermod", "--append", "--groups", strings.Join(u.Groups, ","), "--", u.Name)
	}
	if err != nil {
		return err
	}
	if u.PasswordHash != "" {
		if err := t.Feed(ctx, []byte(u.Name+":"+u.PasswordHash+"\n"), "chpasswd", "--encrypted"); err != nil {
			return err
		}
	}
	if u.Lock {
		if err := t.Run(ctx, "usermod", "--lock", "--", u.Name); err != nil {
			return err
		}
	}
	return errors.Join(authorize(ctx, t, u), permit(ctx, t, u))
}

// useradd returns the command that makes a user.
func useradd(u provision.User) []string {
	args := []string{"useradd"}
	for _, one := range []struct{ flag, value string }{
		{"--comment", u.Comment},
		{"--home-dir", u.Home},
		{"--shell", u.Shell},
		{"--uid", u.UID},
		{"--gid", u.PrimaryGroup},
		{"--groups", strings.Join(u.Groups, ",")},
	} {
		if one.value != "" {
			args = append(args, one.flag, one.value)
		}
	}
	if u.System {
		args = append(args, "--system")
	}
	if u.NoHome {
		args = append(args, "--no-create-home")
	} else {
		args = append(args, "--create-home")
	}
	switch {
	case u.NoGroup:
		args = append(args, "--no-user-group")
	case u.PrimaryGroup == "":
		args = append(args, "--user-group")
	}
	return append(args, "--", u.Name)
}

//go:embed scripts/add-keys.sh
var addKeysScript string

func authorize(ctx context.Context, t *task.Host, u provision.User) error {
	if len(u.Keys) == 0 {
		return nil
	}
	out, err := t.Output(ctx, "getent", "passwd", "--", u.Name)
	if err != nil {
		return err
	}
	fields := strings.Split(strings.TrimSpace(string(out)), ":")
	const home = 5
	if len(fields) <= home || !strings.HasPrefix(fields[home], "/") {
		return fmt.Errorf("user %s has no home directory for keys", u.Name)
	}
	ctx = task.DescribedAs(ctx, "add keys to "+fields[home]+"/.ssh/authorized_keys")
	add := host.Script("add-keys.sh", addKeysScript, fields[home])
	return t.Feed(ctx, []byte(strings.Join(u.Keys, "\n")+"\n"), append([]string{"runuser", "-u", u.Name, "--"},
		add...)...)
}

// permit writes the user's rules for sudo, which sudo itself has found good: with a broken file it refuses everybody.
func permit(ctx context.Context, t *task.Host, u provision.User) error {
	if len(u.Sudo) == 0 {
		return nil
	}
	var rules strings.Builder
	for _, rule := range u.Sudo {
		rules.WriteString(u.Name + " " + rule + "\n")
	}
	if err := t.Feed(ctx, []byte(rules.String()), "visudo", "--check", "--quiet", "--file=-"); err != nil {
		return fmt.Errorf("sudo rules of %s: %w", u.Name, err)
	}
	name := strings.ReplaceAll(u.Name, ".", "_") // sudo passes over names with dots
	return t.Write(ctx, task.File{
		Path: "/etc/sudoers.d/90-kkbundle-" + name, Mode: 0o440,
		Data: []byte(rules.String()),
	})
}
