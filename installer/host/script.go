package host

import "slices"

// Script returns the command that runs a POSIX shell script with positional arguments. name is the script's file in
// this repository: the shell begins its messages with it, and logs and errors show it instead of the text.
func Script(name, text string, args ...string) []string {
	return slices.Concat([]string{"sh", "-c", text, name}, args)
}

// WithoutText returns a command as logs and errors show it: a script by its name, and not by its text.
func WithoutText(args []string) []string {
	const name = 3 // sh -c TEXT NAME ARGUMENT...
	if len(args) > name && args[0] == "sh" && args[1] == "-c" {
		return args[name:]
	}
	return args
}
