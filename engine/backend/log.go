package backend

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/rs/zerolog"
)

// newLogger makes what go-plugin logs to: the lines of the child named name keep their level, go-plugin's own are
// for tracing.
func newLogger(log zerolog.Logger, name string) hclog.Logger {
	level := hclog.Trace
	switch log.GetLevel() {
	case zerolog.TraceLevel:
	case zerolog.DebugLevel:
		level = hclog.Debug
	case zerolog.InfoLevel:
		level = hclog.Info
	case zerolog.WarnLevel:
		level = hclog.Warn
	case zerolog.Disabled:
		level = hclog.Off
	default:
		level = hclog.Error
	}
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Output: io.Discard, Level: level})
	l.RegisterSink(&sink{log: log, child: name})
	return l
}

type sink struct {
	log   zerolog.Logger
	child string
}

// Accept implements hclog.SinkAdapter.
func (s *sink) Accept(name string, level hclog.Level, msg string, args ...any) {
	to := zerolog.TraceLevel
	if name == s.child {
		switch level {
		case hclog.Debug:
			to = zerolog.DebugLevel
		case hclog.Info:
			to = zerolog.InfoLevel
		case hclog.Warn:
			to = zerolog.WarnLevel
		case hclog.Error:
			to = zerolog.ErrorLevel
		}
	}
	s.log.WithLevel(to).Fields(args).Msg(msg)
}

const (
	tailLines = 8   // lines kept
	lineBytes = 300 // of each
)

// tail keeps the lines that explain a death: the head of a crash report, otherwise the last lines.
type tail struct {
	mu      sync.Mutex
	partial []byte
	lines   []string
	crashed bool
	first   string // the very first line, whatever it is
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, part := range bytes.SplitAfter(p, []byte("\n")) {
		if len(t.partial) < 1<<16 {
			t.partial = append(t.partial, part...)
		}
		if bytes.HasSuffix(part, []byte("\n")) {
			t.add(t.partial)
			t.partial = t.partial[:0]
		}
	}
	return len(p), nil
}

func (t *tail) add(raw []byte) {
	line := strings.TrimSpace(string(raw))
	if t.first == "" {
		t.first = clip(line)
	}
	var entry struct {
		Message string `json:"@message"`
		Level   string `json:"@level"`
	}
	if strings.HasPrefix(line, "{") && json.Unmarshal(raw, &entry) == nil && entry.Message != "" {
		if hclog.LevelFromString(entry.Level) < hclog.Warn {
			return
		}
		line = entry.Message
	}
	if line == "" {
		return
	}
	if !t.crashed && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.HasPrefix(line, "SIG")) {
		t.crashed, t.lines = true, nil
	}
	if t.crashed && len(t.lines) == tailLines {
		return
	}
	t.lines = append(t.lines, clip(line))
	if len(t.lines) > tailLines {
		t.lines = t.lines[1:]
	}
}

func clip(line string) string {
	if len(line) > lineBytes {
		return strings.ToValidUTF8(line[:lineBytes], "") + "…"
	}
	return line
}

// said returns the lines on one line, and whether they are the report of a crash.
func (t *tail) said() (text string, crashed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.partial) > 0 {
		t.add(t.partial)
		t.partial = nil
	}
	return strings.Join(t.lines, " | "), t.crashed
}

// firstLine returns the first line, complete or not.
func (t *tail) firstLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first == "" {
		return clip(strings.TrimSpace(string(t.partial)))
	}
	return t.first
}

// lines logs each line written to it and copies it to a tail: what a child printed with Go's os.Stdout or os.Stderr
// after the handshake reaches us as a stream.
type lines struct {
	log     zerolog.Logger
	tail    *tail
	partial []byte
}

func (l *lines) Write(p []byte) (int, error) {
	_, _ = l.tail.Write(p)
	l.partial = append(l.partial, p...)
	for {
		line, rest, ok := bytes.Cut(l.partial, []byte("\n"))
		if !ok && len(l.partial) < 1<<16 {
			return len(p), nil
		}
		l.log.Debug().Msg(string(line))
		l.partial = rest
	}
}
