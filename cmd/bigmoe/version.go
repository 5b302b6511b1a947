package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
)

// version is set by the build: -ldflags "-X main.version=…". Otherwise it is what the go command knows.
var version string

type versionOutput struct {
	Version string   `json:"version"`
	Commit  string   `json:"commit,omitempty"`
	Dirty   bool     `json:"dirty,omitempty"` // the commit is not all of it
	Go      string   `json:"go"`
	OS      string   `json:"os"`
	Arch    string   `json:"arch"`
	Kernels []string `json:"kernels"` // of the built-in CPU backend, the one in use last
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version [flags]",
		Short:   "Print version, commit and CPU kernels",
		Example: `  bigmoe version --json`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			if asJSON {
				return writeJSON(a.stdout, v)
			}
			commit := ""
			if v.Commit != "" {
				commit = " (" + v.Commit[:min(12, len(v.Commit))]
				if v.Dirty {
					commit += ", changed"
				}
				commit += ")"
			}
			_, err := fmt.Fprintf(a.stdout, "bigmoe %s%s, %s %s/%s, kernels %s\n", v.Version, commit, v.Go, v.OS, v.Arch, v.Kernels[len(v.Kernels)-1])
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object")
	return cmd
}

func readVersion() versionOutput {
	v := versionOutput{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Kernels: cpu.Kernels()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Dirty = s.Value == "true"
		}
	}
	return v
}
