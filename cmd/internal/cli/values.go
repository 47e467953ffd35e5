package cli

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/site"
)

// valueFlags give the values of a manifest.
type valueFlags struct{ files, sets []string }

func (v *valueFlags) add(fs *pflag.FlagSet) {
	fs.StringArrayVar(&v.files, "values", nil,
		"`file` of values of the manifest, NAME: VALUE each (repeated; later files win, and --set over them)")
	fs.StringArrayVar(&v.sets, "set", nil,
		"NAME=VALUE: a value of the manifest, over $KKBUNDLE_VALUE_NAME and --values (repeated)")
}

// options returns the options for the library.
func (v *valueFlags) options() (o builder.LoadOptions, err error) {
	o.Variable = os.LookupEnv
	o.Values, err = site.ReadValues(v.files, v.sets)
	return o, err
}
