package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// On a terminal a person is asked, told what it is, and believed only if they type yes.
func TestConsent(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "mine")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755))
	store := filepath.Join(dir, "store")
	for _, c := range []struct {
		typed, say string
		code       int
	}{
		{"no\n", "bigmoe: backend " + program + ": not added", 2},
		{"\n", "not added", 2},
		{"y\n", "not added", 2},
		{"\x04", "not added", 2}, // end of file
		{"\x03", "^C", 130},
		{"yes\n", "mine\tsha256:", 0},
	} {
		require.NoDirExists(t, store)
		p := newTerminal(t)
		cmd := exec.Command("bigmoe", "backend", "add", "--store", store, program)
		cmd.Stdout, cmd.Stderr = p.slave, p.slave
		p.start(t, cmd)
		require.Eventually(t, func() bool { return strings.Contains(p.text(), "Type yes to agree:") }, time.Minute, time.Millisecond)
		_, err := p.master.Write([]byte(c.typed))
		require.NoError(t, err)
		code, text := p.end(t, cmd)
		require.Equal(t, c.code, code, "%q: %s", c.typed, text)
		require.Contains(t, text, c.say)
		require.Contains(t, text, "This is native code.")
		require.Regexp(t, `digest   sha256:[0-9a-f]{64}\r\n  program  sha256:[0-9a-f]{64}, 10 B, \w+/\w+\r\n  signed   by nobody`, text)
		require.Contains(t, text, "source   "+program)
	}
	require.FileExists(t, filepath.Join(store, "lock.json"))
}
