package artifact

import (
	"path/filepath"
	"strings"

	"oras.land/oras-go/v2/registry"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

const layoutPrefix = "oci:"

// Ref says where an artifact is.
type Ref struct {
	place    place
	path     string             // of the file or of the layout folder, absolute
	selector string             // tag or digest in the layout
	remote   registry.Reference // in a registry
}

type place int

const (
	inFile place = iota
	inLayout
	inRegistry
)

// Parse reads a reference. Forms:
//
//	ghcr.io/someone/olmoe:1.2              a tag in a registry
//	ghcr.io/someone/olmoe@sha256:…         a digest in a registry
//	oci:folder:1.2, oci:folder@sha256:…    the same in a layout folder
//	olmoe.wasm, ./backend, /usr/lib/…      a file: a name ending in .wasm, or a path beginning with . or the root
func Parse(text string) (Ref, error) {
	if rest, ok := strings.CutPrefix(text, layoutPrefix); ok {
		return parseLayout(text, rest)
	}
	if isFile(text) {
		path, err := filepath.Abs(text)
		return Ref{place: inFile, path: path}, err
	}
	remote, err := registry.ParseReference(text)
	if err != nil {
		return Ref{}, fault.Userf("reference %q: %w; expected such as ghcr.io/someone/olmoe:1.2, oci:folder:1.2 or ./file", text, err)
	}
	if remote.Reference == "" {
		return Ref{}, fault.Userf("reference %q has no tag or digest: expected such as %s:1.2", text, text)
	}
	return Ref{place: inRegistry, remote: remote}, nil
}

func isFile(text string) bool {
	return strings.HasSuffix(text, ".wasm") || strings.HasPrefix(text, ".") || filepath.IsAbs(text)
}

func parseLayout(text, rest string) (Ref, error) {
	path, selector, ok := strings.Cut(rest, "@")
	if !ok {
		if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(filepath.ToSlash(rest), '/') {
			path, selector = rest[:i], rest[i+1:]
		}
	}
	if path == "" || selector == "" {
		return Ref{}, fault.Userf("reference %q: expected %sFOLDER:TAG or %sFOLDER@DIGEST", text, layoutPrefix, layoutPrefix)
	}
	// The rules for tags and digests are those of registries.
	if err := (registry.Reference{Reference: selector}).ValidateReference(); err != nil {
		return Ref{}, fault.Userf("reference %q: %w", text, err)
	}
	path, err := filepath.Abs(path)
	return Ref{place: inLayout, path: path, selector: selector}, err
}

// String returns the reference in full: paths are absolute.
func (r Ref) String() string {
	switch r.place {
	case inRegistry:
		return r.remote.String()
	case inLayout:
		if strings.ContainsRune(r.selector, ':') {
			return layoutPrefix + r.path + "@" + r.selector
		}
		return layoutPrefix + r.path + ":" + r.selector
	}
	return r.path
}

// tag returns the tag, or the digest that stands in its place.
func (r Ref) tag() string {
	if r.place == inRegistry {
		return r.remote.Reference
	}
	return r.selector
}
