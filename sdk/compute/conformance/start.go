package conformance

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/sdk/compute"
)

func (s *suite) begins() error {
	p, err := s.program()
	if err != nil {
		return err
	}
	s.report.Backend, err = p.describe(s.ctx)
	return err
}

func (s *suite) starts() {
	s.run("start", "the socket is in the folder that the engine gave", func() error {
		p, err := s.program()
		if err != nil {
			return err
		}
		if dir, err := filepath.EvalSymlinks(filepath.Dir(p.socket)); err != nil || dir != realPath(p.sockets) {
			return fmt.Errorf("socket %s, expected one in PLUGIN_UNIX_SOCKET_DIR, %s", p.socket, p.sockets)
		}
		return nil
	})
	s.run("start", "describes itself", func() error {
		p, err := s.program()
		if err != nil {
			return err
		}
		d := s.report.Backend
		switch {
		case d.Name == "":
			return errors.New("no name")
		case len(d.Name)+len(d.Version)+len(d.Kernels) > compute.MaxNameBytes:
			return fmt.Errorf("name, version and kernels have %d, %d and %d bytes, together expected at most %d",
				len(d.Name), len(d.Version), len(d.Kernels), compute.MaxNameBytes)
		case len(d.Ops) == 0 || len(d.Types) == 0:
			return fmt.Errorf("%d ops and %d types", len(d.Ops), len(d.Types))
		case d.PlanSchema == 0:
			return errors.New("no plan schema")
		}
		again, err := p.describe(s.ctx)
		if err == nil && !proto.Equal(d, again) {
			err = errors.New("describes itself differently when asked again")
		}
		return err
	})
	s.run("start", "says what it is when started by hand", s.byHand)
}

func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// byHand starts the program without the cookie.
func (s *suite) byHand() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.o.Path, s.o.Args...)
	cmd.Env = append(cmd.Environ(), s.o.Env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("without the cookie it ran on for %v", s.o.Patience)
	case err != nil && !errors.As(err, &exit):
		return err
	case len(out) == 0:
		return errors.New("without the cookie it ended without a word")
	}
	return nil
}
