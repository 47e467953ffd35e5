package installer

import (
	"context"
	_ "embed" // scripts
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/host"
)

//go:embed scripts/has-commands.sh
var hasCommandsScript string

// hasCommands reports whether the host has all of the commands.
func (t *Target) hasCommands(ctx context.Context, names ...string) (bool, error) {
	return t.test(ctx, host.Script("has-commands.sh", hasCommandsScript, names...)...)
}

// scriptFile makes a file of the host out of scripts of host.Script. It runs them in this order, with their arguments.
func scriptFile(scripts ...[]string) []byte {
	const shebang, body, arguments = "#!/bin/sh\n", 2, 4
	text := shebang + hostfile.Mark + "\n"
	for _, s := range scripts {
		text += "set -- " + commandLine(s[arguments:]) + "\n" + strings.TrimPrefix(s[body], shebang)
	}
	return []byte(text)
}
