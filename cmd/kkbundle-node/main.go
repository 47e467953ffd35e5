//go:build linux

// Command kkbundle-node runs on hosts for kkbundle: it reports the host's facts, receives files and carries
// connections, over its standard input and output. Its work is in installer/node.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kkbundle/kkbundle/installer/node/transfer"

	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/node/s3"
)

const usage = `usage: kkbundle-node facts            < probe.json > facts.json
       kkbundle-node facts --record   < probe.json > facts.json   (without what identifies the machine)
       kkbundle-node facts --schema   > facts.schema.json
       kkbundle-node receive          (speaks to kkbundle)
       kkbundle-node dial HOST:PORT   (speaks to kkbundle)
       kkbundle-node listen           (speaks to kkbundle)
       kkbundle-node reach            (speaks to kkbundle)
       kkbundle-node expires DAYS PATH...   (prints the certificates that end within DAYS; exit code 3: there are none)
       kkbundle-node renew --restart=UNIT,... DAYS CACERT CAKEY {CERT KEY}...   (renews the certificates that end within DAYS, and
                                      restarts units that started before; exit code 3: there was nothing to do)
       kkbundle-node encrypt RECIPIENTS   < file > file.age   (recipients of age, one on each line)
       kkbundle-node put CONFIG FILE DIR   (sends FILE, and copies beside it that were not sent, to a storage with the S3 API;
                                      CONFIG has its address and a login)
       kkbundle-node serves HOST:PORT CAFILE   (exit code 1: the registry there does not serve)
       kkbundle-node volume write|read POD-UID DIR TEXT   (writes TEXT to the pod's volume at DIR, or compares and removes it)
       kkbundle-node destroy-sets PREFIX   (destroys the IP sets whose names begin with PREFIX, and prints them)
       kkbundle-node version`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if errors.Is(err, errNone) {
		os.Exit(3)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kkbundle-node: %v\n", err)
		os.Exit(1)
	}
}

// errNone says that no certificate ends soon.
var errNone = errors.New("none")

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "facts":
		f, err := facts(ctx, in)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(f)
	case len(args) == 2 && args[0] == "facts" && args[1] == "--record":
		f, err := facts(ctx, in)
		if err != nil {
			return err
		}
		e := json.NewEncoder(out)
		e.SetIndent("", " ")
		return e.Encode(f.Anonymous())
	case len(args) == 2 && args[0] == "facts" && args[1] == "--schema":
		_, err := out.Write(node.FactsSchema())
		return err
	case len(args) == 1 && args[0] == "receive":
		syscall.Umask(0o022) // a hardened host's umask must not close directories that everybody needs
		return transfer.Receive(ctx, "/", in, out)
	case len(args) == 2 && args[0] == "dial":
		return node.DialStdio(ctx, "tcp", args[1], in, out)
	case len(args) == 1 && args[0] == "listen":
		return node.ServeListen(ctx, in, out)
	case len(args) == 1 && args[0] == "reach":
		return node.ServeReach(ctx, in, out)
	case len(args) > 2 && args[0] == "expires":
		return expires(out, args[1], args[2:])
	case len(args) > 6 && len(args)%2 == 1 && args[0] == "renew":
		return renew(ctx, out, args[1:])
	case len(args) == 2 && args[0] == "encrypt":
		return node.Encrypt(strings.Split(strings.TrimSpace(args[1]), "\n"), in, out)
	case len(args) == 4 && args[0] == "put":
		return put(ctx, out, args[1:])
	case len(args) == 3 && args[0] == "serves":
		return node.Serves(ctx, args[1], args[2])
	case len(args) == 5 && args[0] == "volume":
		return volume(args[1], node.VolumeProof{Proc: "/proc", PodUID: args[2], Dir: args[3], Text: args[4]})
	case len(args) == 2 && args[0] == "destroy-sets":
		return destroySets(out, args[1])
	case len(args) == 1 && args[0] == "version":
		_, err := fmt.Fprintf(out, "kkbundle-node facts %d, protocol %d\n", node.FactsVersion, transfer.ProtocolVersion)
		return err
	default:
		return errors.New(usage)
	}
}

// put sends a copy to a storage. args are those of s3.PutFile.
func put(ctx context.Context, out io.Writer, args []string) error {
	sent, err := s3.PutFile(ctx, args[0], args[1], args[2])
	if len(sent) > 0 {
		_, writeErr := fmt.Fprintf(out, "sent: %s\n", strings.Join(sent, ", "))
		err = errors.Join(err, writeErr)
	}
	return err
}

func destroySets(out io.Writer, prefix string) error {
	names, err := node.DestroySets(prefix)
	for _, name := range names {
		if _, writeErr := fmt.Fprintln(out, name); writeErr != nil {
			return errors.Join(err, writeErr)
		}
	}
	return err
}

func volume(verb string, p node.VolumeProof) error {
	switch verb {
	case "write":
		return p.Write()
	case "read":
		return p.Read()
	}
	return errors.New(usage)
}

func expires(out io.Writer, days string, paths []string) error {
	n, err := strconv.Atoi(days)
	if err != nil || n < 0 {
		return errors.New(usage)
	}
	soon := node.Expiring(time.Now().AddDate(0, 0, n), paths...)
	for _, c := range soon {
		if _, err := fmt.Fprintf(out, "%s %s\n", c.Path, c.NotAfter.Format(time.RFC3339)); err != nil {
			return err
		}
	}
	if len(soon) == 0 {
		return errNone
	}
	return nil
}

// renew renews certificates by the authority whose pair comes first.
func renew(ctx context.Context, out io.Writer, args []string) error {
	units, ok := strings.CutPrefix(args[0], "--restart=")
	n, err := strconv.Atoi(args[1])
	if !ok || err != nil || n < 0 {
		return errors.New(usage)
	}
	var pairs []node.CertificatePair
	for one := range slices.Chunk(args[2:], 2) { //nolint:mnd // a certificate and its key
		pairs = append(pairs, node.CertificatePair{Cert: one[0], Key: one[1]})
	}
	now := time.Now()
	renewed, err := node.Renew(pairs[0], now, now.AddDate(0, 0, n), pairs[1:]...)
	for _, name := range renewed {
		if _, err := fmt.Fprintln(out, "renewed", name); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	changed := len(renewed) > 0
	for unit := range strings.FieldsFuncSeq(units, func(r rune) bool { return r == ',' }) {
		restarted, err := node.RestartStale(ctx, unit, pairs[1:]...)
		if err != nil {
			return err
		}
		changed = changed || restarted
	}
	if !changed {
		return errNone
	}
	return nil
}

func facts(ctx context.Context, in io.Reader) (node.Facts, error) {
	probe, err := node.ReadProbe(in)
	if err != nil {
		return node.Facts{}, err
	}
	return node.Collect(ctx, probe)
}
