package task

import (
	"context"
	_ "embed"
	"strings"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/internal/hostfile"
)

//go:embed scripts/has-commands.sh
var hasCommandsScript string

// HasCommands reports whether the host has all of the commands.
func (t *Host) HasCommands(ctx context.Context, names ...string) (bool, error) {
	return t.Test(ctx, host.Script("has-commands.sh", hasCommandsScript, names...)...)
}

// ScriptFile returns a shell script that runs scripts of host.Script in order, with their arguments.
func ScriptFile(scripts ...[]string) []byte {
	const shebang, body, arguments = "#!/bin/sh\n", 2, 4
	text := shebang + hostfile.Mark + "\n"
	for _, s := range scripts {
		text += "set -- " + CommandLine(s[arguments:]) + "\n" + strings.TrimPrefix(s[body], shebang)
	}
	return []byte(text)
}
