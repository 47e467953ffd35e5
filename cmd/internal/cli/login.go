package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/credentials"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/cmd/internal/usage"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/registry"
	"github.com/kkbundle/kkbundle/web/logins"
)

func newLoginCmd(g *globals) *cobra.Command {
	var o loginFlags
	cmd := &cobra.Command{
		Use:   "login HOST[:PORT]",
		Short: "Log in to a registry",
		Long: `Checks a login with a registry, and keeps it in docker's configuration ($DOCKER_CONFIG, else ~/.docker/config.json),
where build, push, publish and pull find it, as do docker, helm and crane. A credential helper of that configuration
(credsStore, credHelpers) keeps the password; without one the file has it, which only you can read.

User and password are asked for on a terminal; scripts give --username and --password-stdin.`,
		Example: "  kkbundle login harbor.site\n  kkbundle login harbor.site -u robot --password-stdin < password",
		Args:    takes("HOST[:PORT]"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runLogin(cmd.Context(), g, args[0], o) },
	}
	o.add(cmd.Flags())
	return cmd
}

func newLogoutCmd(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "logout HOST[:PORT]",
		Short:   "Remove the login of a registry",
		Long:    "Removes the login of a registry from docker's configuration, or from the credential helper that keeps it.",
		Example: "  kkbundle logout harbor.site",
		Args:    takes("HOST[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, key, err := registryKey(args[0])
			if err != nil {
				return err
			}
			file, err := dockerConfig()
			if err != nil {
				return err
			}
			if err := forget(cmd.Context(), file, key); err != nil {
				return fmt.Errorf("%s: %w", plain.Line(args[0]), err)
			}
			g.Note("removed the login of %s", plain.Line(args[0]))
			return nil
		},
	}
}

// loginResult is the JSON output of login.
type loginResult struct {
	Version  int    `json:"version"` // 1
	Registry string `json:"registry"`
	Username string `json:"username"`
	// Store is the credential helper, or the file that has the password.
	Store string `json:"store"`
}

func runLogin(ctx context.Context, g *globals, host string, o loginFlags) error {
	if err := o.check(); err != nil {
		return err
	}
	address, key, err := registryKey(host)
	if err != nil {
		return err
	}
	file, err := dockerConfig()
	if err != nil {
		return err
	}
	account, err := o.account(ctx, g)
	if err != nil {
		return err
	}
	transport, plainHTTP, err := o.transport(ctx, g, address)
	if err != nil {
		return err
	}
	err = registry.CheckLogin(ctx, registry.PushOptions{
		Registry: address, Auth: login{&authn.Basic{Username: account.Username, Password: account.Password}},
		Transport: transport, PlainHTTP: plainHTTP,
		Logger: g.Logger(),
	})
	if err != nil {
		return &pushError{fmt.Errorf("login to %s: %w", host, err)}
	}
	account.ServerAddress = key
	if err := keep(ctx, file, account); err != nil {
		return fmt.Errorf("keep the login: %w", err)
	}
	r := loginResult{Version: 1, Registry: address, Username: account.Username, Store: file.Filename}
	if helper := helperOf(file, key); helper != "" {
		r.Store = helper.String()
	}
	if g.JSON {
		return g.PrintJSON(r)
	}
	g.Note("logged in to %s as %s; the password is in %s", plain.Line(host), plain.Line(account.Username),
		plain.Line(r.Store))
	return nil
}

// account returns user and password: those of the flags, or those that the terminal is asked for.
func (f *loginFlags) account(ctx context.Context, g *globals) (a types.AuthConfig, err error) {
	switch {
	case f.passwordStdin && f.username == "":
		return a, usage.Errorf("--password-stdin needs --username")
	case f.passwordStdin:
		a.Username = f.username
		a.Password, err = readPassword(g.In)
		return a, err
	case !terminal.IsTerminal(g.In):
		return a, usage.Errorf("without a terminal to ask on, give --username and --password-stdin; passwords are never taken from the command line")
	}
	if a.Username = f.username; a.Username == "" {
		_, _ = fmt.Fprint(g.Err, "user: ")
		text, err := bufio.NewReader(g.In).ReadString('\n')
		if err != nil {
			return a, err
		}
		a.Username = strings.TrimSpace(text)
	}
	a.Password, err = g.AskSecret(ctx, "password")
	if err == nil && (a.Username == "" || a.Password == "") {
		err = errors.New("user or password is empty: nothing was kept")
	}
	return a, err
}

// registryKey returns a registry's address, and its key in docker's configuration.
func registryKey(host string) (address, key string, err error) {
	if i := strings.LastIndexByte(host, '@'); i >= 0 { // and what stands before is a secret
		return "", "", usage.Errorf("%s: write HOST[:PORT] alone, and give --username", plain.Line(host[i+1:]))
	}
	if strings.Contains(host, "/") {
		return "", "", usage.Errorf("%s: a login is for a whole registry: write HOST[:PORT]", plain.Line(host))
	}
	r, err := name.NewRegistry(host, name.StrictValidation)
	if err != nil {
		return "", "", &usage.Error{Err: err}
	}
	if address = r.RegistryStr(); address == name.DefaultRegistry {
		return address, authn.DefaultAuthKey, nil
	}
	return address, address, nil
}

// dockerConfig reads docker's configuration.
func dockerConfig() (*configfile.ConfigFile, error) {
	file, err := config.Load(config.Dir())
	if err != nil {
		return nil, &builder.InputError{Err: fmt.Errorf("docker's configuration: %w", err)}
	}
	return file, nil
}

// helperOf returns the credential helper of a registry, "" for the file itself.
func helperOf(file *configfile.ConfigFile, key string) logins.Helper {
	if helper := file.CredentialHelpers[key]; helper != "" {
		return logins.Helper(helper)
	}
	return logins.Helper(file.CredentialsStore)
}

// keep stores a login: in the registry's helper, beside which the file has an empty entry as docker writes it, or in
// the file.
func keep(ctx context.Context, file *configfile.ConfigFile, account types.AuthConfig) error {
	if helper := helperOf(file, account.ServerAddress); helper != "" {
		if err := helper.Store(ctx, account.ServerAddress, account.Username, account.Password); err != nil {
			return err
		}
		account = types.AuthConfig{ServerAddress: account.ServerAddress}
	}
	return credentials.NewFileStore(file).Store(account)
}

// forget removes a login from where keep stores it.
func forget(ctx context.Context, file *configfile.ConfigFile, key string) error {
	helper := helperOf(file, key)
	have := file.AuthConfigs[key] != types.AuthConfig{ServerAddress: key}
	if _, listed := file.AuthConfigs[key]; !listed {
		have = false
	}
	if helper != "" {
		kept, err := helper.Has(ctx, key)
		if err != nil {
			return err
		}
		have = have || kept
	}
	if !have {
		return fmt.Errorf("%s has no login", file.Filename)
	}
	if helper != "" {
		if err := helper.Erase(ctx, key); err != nil {
			return err
		}
	}
	return credentials.NewFileStore(file).Erase(key)
}
