// Package fault sorts every failure into one of four kinds, so that a person learns whose move it is: the file is
// corrupt, the request was wrong, the thing asked for is not supported, or bigmoe has a bug.
//
//	return fault.Corruptf("%s: tensor %q: offset %d is past the end", path, name, off)
//
// A kind travels inside the error chain: wrap with %w as usual and ask with [KindOf]. Errors of the machine (disk
// failure, out of memory, killed child) carry no kind. The package has no state and is safe for concurrent use.
package fault

import (
	"errors"
	"fmt"
)

// Kind says whose move it is.
type Kind int

// The kinds. Unknown is what an error has that nobody classified.
const (
	Unknown     Kind = iota
	Corrupt          // the bytes of a file contradict its format or its own metadata
	User             // the request cannot be meant: bad flag, missing file, budget too small
	Unsupported      // legal, but this build, recipe, backend or machine cannot do it
	Bug              // bigmoe broke its own promise
)

// String returns the word used in messages and JSON.
func (k Kind) String() string {
	switch k {
	case Corrupt:
		return "corrupt file"
	case User:
		return "user mistake"
	case Unsupported:
		return "unsupported"
	case Bug:
		return "bug"
	}
	return "failure"
}

// ExitCode returns the process exit status for an error of kind k. Unclassified failures exit with 1;
// an interrupt exits with 130, which no kind uses.
func (k Kind) ExitCode() int {
	switch k {
	case Corrupt:
		return 3
	case User:
		return 2
	case Unsupported:
		return 4
	case Bug:
		return 70
	}
	return 1
}

type kinded struct {
	kind Kind
	err  error
}

func (e *kinded) Error() string { return e.err.Error() }
func (e *kinded) Unwrap() error { return e.err }

// Corruptf formats an error of kind [Corrupt]; %w works as in fmt.Errorf.
func Corruptf(format string, args ...any) error { return wrapf(Corrupt, format, args) }

// Userf formats an error of kind [User].
func Userf(format string, args ...any) error { return wrapf(User, format, args) }

// Unsupportedf formats an error of kind [Unsupported].
func Unsupportedf(format string, args ...any) error { return wrapf(Unsupported, format, args) }

// Bugf formats an error of kind [Bug].
func Bugf(format string, args ...any) error { return wrapf(Bug, format, args) }

func wrapf(k Kind, format string, args []any) error {
	return &kinded{kind: k, err: fmt.Errorf(format, args...)}
}

// As returns err with kind k unless err already has one: the place that knows the cause best wins.
func As(k Kind, err error) error {
	if err == nil || KindOf(err) != Unknown {
		return err
	}
	return &kinded{kind: k, err: err}
}

// KindOf returns the kind of the outermost classified error in the chain, or [Unknown].
func KindOf(err error) Kind {
	var k *kinded
	if errors.As(err, &k) {
		return k.kind
	}
	return Unknown
}
