package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/term"
	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/store"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// flagYes consents to native code. It is the one flag that no variable can set.
const flagYes = "yes"

// backendStoreCommands are the verbs about backends that strangers ship.
func (a *app) backendStoreCommands() []*cobra.Command {
	add := &cobra.Command{
		Use:     "add [flags] REF",
		Short:   "Add a backend from a registry, a layout folder or a file, and pin its digest",
		Example: `  bigmoe backend add ghcr.io/someone/compute-vulkan:0.3`,
		Long: `A backend is native code: it runs with your rights and can do to your files what you can. So you are asked first; where there is
nobody to ask, --yes says that you would agree. Its checksum is compared at each start. REF is as for "recipe add"; paths of files
begin with . or /. Then --backend NAME of the verb run takes it.`,
		Args: cobra.ExactArgs(1),
	}
	var f addFlags
	var yes bool
	f.add(add.Flags())
	add.Flags().BoolVar(&yes, flagYes, false, "consent to native code without being asked")
	add.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		return a.add(ctx, &f, registry.Request{Kind: artifact.Backend, Ref: args[0], Consent: func(o registry.Offer) error {
			if yes {
				return nil
			}
			return a.consent(ctx, o)
		}})
	}
	return append([]*cobra.Command{add, a.backendPushCommand()}, a.storeCommands(artifact.Backend)...)
}

// consent asks the person at the terminal about native code.
func (a *app) consent(ctx context.Context, o registry.Offer) error {
	if !term.Is(a.stdin) || !term.Is(a.stderr) {
		return fault.Userf("%s is native code that would run with your rights, and there is no terminal to ask at: --yes consents to it", o.Entry.Digest)
	}
	signed := "by nobody that you asked for"
	if o.Entry.Key != nil {
		signed = "with key " + o.Entry.Key.Fingerprint()
	}
	fmt.Fprintf(a.status, `This is native code. It runs with your rights: it can read, change and send all that you can.
  source   %s
  digest   %s
  program  %s, %s, %s
  signed   %s
Add it as backend %s? Type yes to agree: `, o.Entry.Source, o.Entry.Digest, o.File, budget.Size(o.Bytes), store.Platform, signed, o.Name)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case line := <-answer:
		if line != "yes" {
			return fault.Userf("not added")
		}
		return nil
	}
}

func (a *app) backendPushCommand() *cobra.Command {
	var f pushFlags
	cmd := &cobra.Command{
		Use:   "push [flags] [OS/ARCH=]FILE... REF",
		Short: "Publish a backend to a registry or a layout folder",
		Example: `  bigmoe backend push ./compute-vulkan ghcr.io/me/compute-vulkan:0.3
  bigmoe backend push --name mine linux/amd64=a/mine linux/arm64=b/mine oci:layout:1`,
		Long: `One file for each platform, by Go's names for operating systems and processors; one without is for this machine's. The backend
is called what the first file is called, unless --name says otherwise. The digest that is printed covers all files.`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, to := args[:len(args)-1], args[len(args)-1]
			programs := map[string][]byte{}
			name := f.name
			for _, arg := range files {
				platform, path, ok := strings.Cut(arg, "=")
				if !ok {
					platform, path = store.Platform, arg
				}
				if programs[platform] != nil {
					return fault.Userf("two programs for %s, expected one", platform)
				}
				program, err := artifact.ReadFile(artifact.Backend, path)
				if err != nil {
					return fmt.Errorf("backend %s: %w", path, err)
				}
				programs[platform] = program
				name = cmp.Or(name, artifact.FileName(path))
			}
			return a.push(cmd.Context(), &f, artifact.Backend, name, programs, to)
		},
	}
	f.add(cmd.Flags())
	return cmd
}
