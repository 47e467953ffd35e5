package usage

import "github.com/spf13/pflag"

// The groups of flags that many commands share.
const (
	GroupTrust = "Flags for signed and encrypted bundles"
	GroupHosts = "Flags for the connection to hosts"
)

const groupAnnotation = "kkbundle.io/group"

// Group puts the flags that add adds into a group, under whose title help lists them.
func Group(fs *pflag.FlagSet, title string, add func(*pflag.FlagSet)) {
	own := pflag.NewFlagSet(title, pflag.ContinueOnError)
	add(own)
	own.VisitAll(func(f *pflag.Flag) {
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[groupAnnotation] = []string{title}
		if fs.Lookup(f.Name) == nil { // some are in several groups
			fs.AddFlag(f)
		}
	})
}

// GroupOf returns the title of a flag's group, "" for a command's own flags.
func GroupOf(f *pflag.Flag) string {
	if g := f.Annotations[groupAnnotation]; len(g) > 0 {
		return g[0]
	}
	return ""
}
