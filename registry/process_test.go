package registry_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/store"
)

// TestMain lets the test binary be other processes: a registry, or a bigmoe that adds a recipe.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case "serve":
			err = serve()
		case "add":
			_, err = registry.New(registry.Config{Store: store.New(os.Args[2])}).Install(context.Background(),
				registry.Request{Kind: artifact.Recipe, Ref: os.Args[3], Name: os.Args[4]})
		default:
			os.Exit(m.Run())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serve is a registry on a free port, until standard input ends.
func serve() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go http.Serve(l, ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startRegistry starts a registry process and returns its address.
func startRegistry(t *testing.T) (host string, stop func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "serve")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	stop = func() {
		stdin.Close()
		_ = cmd.Wait()
	}
	return strings.TrimSpace(line), stop
}

// Against a registry in a process of its own, which then goes away: what was added does not need it.
func TestRegistryProcess(t *testing.T) {
	host, stop := startRegistry(t)
	w, me := newWorld(t), newSigner(t)
	ref := host + "/some/deep/name:1.2"
	_, d := w.publish("mine", "content", ref)
	o, err := w.install(registry.Request{Ref: ref})
	require.NoError(t, err)
	require.Equal(t, d, o.Entry.Digest)
	_, err = w.install(registry.Request{Ref: ref, Key: me.public})
	require.ErrorContains(t, err, "is not signed")

	stop()
	require.NoError(t, w.find("mine"))
	require.ErrorContains(t, w.add(ref), "connection refused")
	require.NoError(t, w.find("mine"))
}

// Processes that add at once take turns: nothing is lost, and of two that disagree one is refused.
func TestProcessesAddAtOnce(t *testing.T) {
	w := newWorld(t)
	const each = 4
	type process struct {
		cmd    *exec.Cmd
		stderr *strings.Builder
		name   string
	}
	var all []process
	for i := range each {
		ref, _ := w.publish(fmt.Sprint("n", i), fmt.Sprint("content", i), "")
		for _, name := range []string{fmt.Sprint("n", i), "same"} {
			p := process{exec.Command(os.Args[0], "add", w.dir, ref, name), &strings.Builder{}, name}
			p.cmd.Stderr = p.stderr
			require.NoError(t, p.cmd.Start())
			all = append(all, p)
		}
	}
	won := 0
	for _, p := range all {
		err := p.cmd.Wait()
		switch {
		case p.name != "same":
			require.NoError(t, err, p.stderr)
		case err == nil:
			won++
		default:
			require.Contains(t, p.stderr.String(), "same is pinned to sha256:")
		}
	}
	require.Equal(t, 1, won)
	findings, err := w.registry().Verify(artifact.Recipe)
	require.NoError(t, err)
	require.Len(t, findings, each+1)
	for _, f := range findings {
		require.NoError(t, f.Err)
	}
	left, err := filepath.Glob(filepath.Join(w.dir, "blobs", "sha256", ".new-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
