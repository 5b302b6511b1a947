package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/cosign"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// recipeStoreCommands are the verbs about recipes that strangers ship.
func (a *app) recipeStoreCommands() []*cobra.Command {
	add := &cobra.Command{
		Use:     "add [flags] REF",
		Short:   "Add a recipe from a registry, a layout folder or a file, and pin its digest",
		Example: `  bigmoe recipe add ghcr.io/someone/olmoe:1.2`,
		Long: `REF is HOST/NAME:TAG or HOST/NAME@sha256:DIGEST in an OCI registry, the same after oci:FOLDER in a layout folder, or a .wasm
file. What was added is used without a network from then on, for models of the architecture that it is named after.
docs/registry.md explains the lock file, signatures and what is refused.`,
		Args: cobra.ExactArgs(1),
	}
	var f addFlags
	f.add(add.Flags())
	add.RunE = func(cmd *cobra.Command, args []string) error {
		return a.add(cmd.Context(), &f, registry.Request{Kind: artifact.Recipe, Ref: args[0]})
	}
	return append([]*cobra.Command{add, a.recipePushCommand()}, a.storeCommands(artifact.Recipe)...)
}

func (a *app) recipePushCommand() *cobra.Command {
	var f pushFlags
	cmd := &cobra.Command{
		Use:   "push [flags] FILE.wasm REF",
		Short: "Publish a recipe to a registry or a layout folder",
		Example: `  bigmoe recipe push olmoe.wasm ghcr.io/me/olmoe:1.2
  bigmoe recipe push olmoe.wasm oci:layout:1.2`,
		Long: `The recipe is called what the file is called, unless --name says otherwise; that should be the architecture in the files of
its models. The same file always makes the same digest, which is printed.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			module, err := artifact.ReadFile(artifact.Recipe, args[0])
			if err != nil {
				return fmt.Errorf("recipe %s: %w", args[0], err)
			}
			name := cmp.Or(f.name, artifact.FileName(args[0]))
			return a.push(cmd.Context(), &f, artifact.Recipe, name, map[string][]byte{"": module}, args[1])
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// storeCommands are the verbs that are alike for recipes and backends.
func (a *app) storeCommands(kind artifact.Kind) []*cobra.Command {
	var f storeFlags
	remove := &cobra.Command{
		Use:     "remove [flags] NAME",
		Short:   fmt.Sprintf("Remove a %s that was added", kind),
		Example: fmt.Sprintf("  bigmoe %s remove mine", kind),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, _, err := (&modelFlags{storeFlags: f}).registry()
			if err != nil {
				return err
			}
			return r.Uninstall(cmd.Context(), kind, args[0])
		},
	}
	var asJSON bool
	verify := &cobra.Command{
		Use:     "verify [flags]",
		Short:   fmt.Sprintf("Compare every %s that was added with its pinned digest and signature", kind),
		Example: fmt.Sprintf("  bigmoe %s verify", kind),
		Long:    "Exit code 3 if one must not be used.",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return a.verify(&f, kind, asJSON) },
	}
	f.add(remove.Flags())
	f.add(verify.Flags())
	verify.Flags().BoolVar(&asJSON, "json", false, "a JSON list")
	return []*cobra.Command{remove, verify}
}

// accessFlags say how registries are reached.
type accessFlags struct {
	plainHTTP bool
	timeout   time.Duration
}

func (f *accessFlags) add(fs *pflag.FlagSet) {
	fs.BoolVar(&f.plainHTTP, "plain-http", false, "allow a registry without TLS; one on this machine is always reached without it")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long the registry may take")
}

// access returns how registries are reached. Credentials are those of docker login.
func (f *accessFlags) access(a *app) artifact.Config {
	dir, ok := a.lookupEnv("DOCKER_CONFIG")
	if !ok || dir == "" {
		home, _ := os.UserHomeDir()
		dir = filepath.Join(home, ".docker")
	}
	return artifact.Config{DockerConfig: filepath.Join(dir, "config.json"), PlainHTTP: f.plainHTTP, UserAgent: "bigmoe/" + readVersion().Version}
}

// addFlags are those of the verbs add.
type addFlags struct {
	storeFlags
	accessFlags
	name, key string
	update    bool
}

func (f *addFlags) add(fs *pflag.FlagSet) {
	f.storeFlags.add(fs)
	f.accessFlags.add(fs)
	fs.StringVar(&f.name, "name", "", "`NAME` to add it under; default: what its publisher calls it")
	fs.StringVar(&f.key, "key", "", "public key `FILE` of cosign that it must be signed with; remembered for updates")
	fs.BoolVar(&f.update, "update", false, "take what is there now, even if another digest was pinned")
}

// add installs what req asks for, as the flags say.
func (a *app) add(ctx context.Context, f *addFlags, req registry.Request) error {
	r, _, err := (&modelFlags{storeFlags: f.storeFlags}).registry()
	if err != nil {
		return err
	}
	if f.key != "" {
		text, err := readFile(f.key)
		if err != nil {
			return err
		}
		if req.Key, err = cosign.ParseKey([]byte(text)); err != nil {
			return fmt.Errorf("%s: %w", f.key, err)
		}
	}
	req.Name, req.Update, req.Access, req.Timeout = f.name, f.update, f.access(a), f.timeout
	o, err := r.Install(ctx, req)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "%s\t%s\t%s\n", o.Name, o.Entry.Digest, o.Entry.Source)
	return err
}

// pushFlags are those of the verbs push.
type pushFlags struct {
	accessFlags
	name string
}

func (f *pushFlags) add(fs *pflag.FlagSet) {
	f.accessFlags.add(fs)
	fs.StringVar(&f.name, "name", "", "`NAME` to publish it under; default: that of the file")
}

// push publishes files, those of a backend by platform.
func (a *app) push(ctx context.Context, f *pushFlags, kind artifact.Kind, name string, files map[string][]byte, to string) error {
	ref, err := artifact.Parse(to)
	if err != nil {
		return err
	}
	packed, err := artifact.Pack(kind, name, files)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fault.Userf("%s took longer than %v", ref, f.timeout))
	defer cancel()
	digest, err := packed.Push(ctx, ref, f.access(a))
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return err
	}
	_, err = fmt.Fprintln(a.stdout, digest)
	return err
}

// findingOutput is an entry of the store after its content was read.
type findingOutput struct {
	Name   string `json:"name"`
	Source string `json:"source"`
	Digest string `json:"digest"`
	Key    string `json:"key,omitempty"` // its fingerprint, if one was asked for
	Bytes  int64  `json:"bytes"`
	OK     bool   `json:"ok"`
	Why    string `json:"why,omitempty"` // it is not
}

// verify reads the store and says for each entry whether it may be used.
func (a *app) verify(f *storeFlags, kind artifact.Kind, asJSON bool) error {
	r, _, err := (&modelFlags{storeFlags: *f}).registry()
	if err != nil {
		return err
	}
	findings, err := r.Verify(kind)
	if err != nil {
		return err
	}
	out, bad := []findingOutput{}, 0
	for _, e := range findings {
		o := findingOutput{Name: e.Name, Source: e.Entry.Source, Digest: e.Entry.Digest.String(), Bytes: e.Bytes, OK: e.Err == nil, Why: text(e.Err)}
		if e.Entry.Key != nil {
			o.Key = e.Entry.Key.Fingerprint()
		}
		if !o.OK {
			bad++
		}
		out = append(out, o)
	}
	if asJSON {
		err = writeJSON(a.stdout, out)
	} else {
		err = writeFindings(a.stdout, out)
	}
	if err == nil && bad > 0 {
		err = fault.Corruptf("%d of %d %ss must not be used", bad, len(out), kind)
	}
	return err
}

func writeFindings(to io.Writer, list []findingOutput) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tDIGEST\tKEY\tSOURCE\tSTATE")
	for _, e := range list {
		_, hex, _ := strings.Cut(e.Digest, ":")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Name, budget.Size(e.Bytes), hex[:16], cmp.Or(e.Key, "-"), e.Source, cmp.Or(e.Why, "ok"))
	}
	return w.Flush()
}
