package backend

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/hashicorp/go-plugin"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

func (p *Process) checkProgram() error {
	if p.opts.Memory == nil {
		return fault.Bugf("no shared memory given")
	}
	switch info, err := os.Stat(p.opts.Path); {
	case err != nil:
		return fault.As(fault.User, err)
	case !info.Mode().IsRegular():
		return fault.Userf("not a program")
	}
	if len(p.opts.SHA256) == 0 {
		return nil
	}
	check := plugin.SecureConfig{Checksum: p.opts.SHA256, Hash: sha256.New()}
	if ok, err := check.Check(p.opts.Path); err != nil {
		return fmt.Errorf("checksum: %w", err)
	} else if !ok {
		return fault.Corruptf("sha256 is %x, expected %x", check.Hash.Sum(nil), p.opts.SHA256)
	}
	return nil
}

// launchError says why the system would not run the program.
func launchError(path string, err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fault.Userf("not executable: %w", err)
	case !errors.Is(err, syscall.ENOEXEC):
		return fault.As(fault.User, err)
	}
	here := runtime.GOOS + "/" + runtime.GOARCH
	if what := format(path); what != "" {
		return fault.Unsupportedf("is a program for %s, this machine is %s: %w", what, here, err)
	}
	return fault.Userf("is no program that %s can run; a script begins with #! and its interpreter: %w", here, err)
}

// format names the system and processor that a program was made for, "" if it is none.
func format(path string) string {
	if f, err := elf.Open(path); err == nil {
		defer f.Close()
		return "ELF systems such as Linux on " + f.Machine.String()
	}
	if f, err := macho.Open(path); err == nil {
		defer f.Close()
		return "macOS on " + f.Cpu.String()
	}
	if f, err := pe.Open(path); err == nil {
		defer f.Close()
		return fmt.Sprintf("Windows on processor %#x", f.Machine)
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	head := make([]byte, 4)
	if n, _ := f.Read(head); bytes.Equal(head[:n], []byte("\x00asm")) {
		return "WebAssembly (a recipe?)"
	}
	return ""
}
