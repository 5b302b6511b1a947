package artifact

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/errdef"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Packed is an artifact in memory. The same files make the same digests.
type Packed struct {
	Root  ocispec.Descriptor
	blobs []Blob // what others refer to comes before them
}

// Pack makes an artifact. files has the program of a backend by platform; that of a recipe is for the platform "".
func Pack(kind Kind, name string, files map[string][]byte) (*Packed, error) {
	if !ValidName(name) {
		return nil, fault.Userf("%q cannot be the name of a %s", name, kind)
	}
	artifactType, layerType := kind.types()
	title := name
	if kind == Recipe {
		title += ".wasm"
	}
	p := &Packed{}
	p.add(ocispec.MediaTypeEmptyJSON, []byte("{}"))
	var manifests []ocispec.Descriptor
	for _, platform := range slices.Sorted(maps.Keys(files)) {
		layer := p.add(layerType, files[platform])
		layer.Annotations = map[string]string{ocispec.AnnotationTitle: title}
		manifest := p.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifactType,
			Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{layer},
		})
		manifest.ArtifactType = artifactType
		if kind == Backend {
			os, arch, ok := strings.Cut(platform, "/")
			if !ok || !ValidName(os) || !ValidName(arch) {
				return nil, fault.Userf("platform %q: expected such as linux/amd64", platform)
			}
			manifest.Platform = &ocispec.Platform{OS: os, Architecture: arch}
		}
		manifests = append(manifests, manifest)
		p.Root = manifest
	}
	if kind == Backend {
		p.Root = p.addJSON(ocispec.MediaTypeImageIndex, ocispec.Index{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, ArtifactType: artifactType,
			Manifests: manifests,
		})
	}
	return p, nil
}

// PackFile makes an artifact of one file, with the name of that file.
func PackFile(kind Kind, path, platform string) (*Packed, error) {
	file, err := ReadFile(kind, path)
	if err != nil {
		return nil, err
	}
	if kind == Recipe {
		platform = ""
	}
	return Pack(kind, FileName(path), map[string][]byte{platform: file})
}

// FileName returns what something is called by the path of its file.
func FileName(path string) string {
	return strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".wasm"), ".exe")
}

func (p *Packed) add(mediaType string, b []byte) ocispec.Descriptor {
	d := content.NewDescriptorFromBytes(mediaType, b)
	p.blobs = append(p.blobs, Blob{d, b})
	return d
}

func (p *Packed) addJSON(mediaType string, v any) ocispec.Descriptor {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // structs of strings and numbers
	}
	return p.add(mediaType, text)
}

var _ target = (*Packed)(nil)

// Fetch returns a blob.
func (p *Packed) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	for _, b := range p.blobs {
		if b.Descriptor.Digest == d.Digest {
			return io.NopCloser(bytes.NewReader(b.Bytes)), nil
		}
	}
	return nil, errdef.ErrNotFound
}

// Resolve finds nothing: what is in memory has no tags.
func (p *Packed) Resolve(context.Context, string) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, errdef.ErrNotFound
}

// layoutTurn is locked by the process that changes a layout folder.
const layoutTurn = ocispec.ImageIndexFile + ".lock"

// Push writes the artifact to a registry or layout folder, which is made if there is none, and tags it.
func (p *Packed) Push(ctx context.Context, ref Ref, cfg Config) (digest.Digest, error) {
	var to oras.Target
	var err error
	switch ref.place {
	case inFile:
		return "", fault.Userf("%s is a file: expected a registry, or oci:FOLDER:TAG", ref)
	case inLayout:
		if err := os.MkdirAll(ref.path, 0o755); err != nil {
			return "", fault.As(fault.User, err)
		}
		turn, err := Turn(ctx, filepath.Join(ref.path, layoutTurn)) // else the last of two that push at once wins
		if err != nil {
			return "", err
		}
		defer turn.Close()
		if to, err = oci.NewWithContext(ctx, ref.path); err != nil {
			return "", fault.As(fault.User, err)
		}
	case inRegistry:
		to, err = cfg.repository(ref)
	}
	if err != nil {
		return "", err
	}
	if d, err := digest.Parse(ref.tag()); err == nil {
		return "", fault.Userf("%s: cannot push to a digest (%s): expected a tag", ref, d)
	}
	for _, b := range p.blobs {
		if err := to.Push(ctx, b.Descriptor, bytes.NewReader(b.Bytes)); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
			return "", refusal(fmt.Errorf("%s: %w", ref, err))
		}
	}
	if err := to.Tag(ctx, p.Root, ref.tag()); err != nil {
		return "", refusal(fmt.Errorf("%s: %w", ref, err))
	}
	return p.Root.Digest, nil
}

// ReadFile reads a module or program that a person named.
func ReadFile(kind Kind, path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // the open of a pipe would wait for a writer
	if err != nil {
		return nil, fault.As(fault.User, err)
	}
	defer f.Close()
	switch info, err := f.Stat(); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fault.Userf("not a regular file")
	case info.Size() > kind.MaxBytes():
		return nil, fault.Userf("%d bytes, expected at most %d", info.Size(), kind.MaxBytes())
	}
	b, err := io.ReadAll(io.LimitReader(f, kind.MaxBytes()))
	if err != nil {
		return nil, err
	}
	return b, CheckFile(kind, b)
}

// CheckFile refuses what is obviously no module or program.
func CheckFile(kind Kind, b []byte) error {
	switch module := bytes.HasPrefix(b, []byte("\x00asm")); {
	case kind == Recipe && !module:
		return fault.Corruptf("not a WebAssembly module")
	case kind == Backend && module:
		return fault.Corruptf("a WebAssembly module, expected a program: bigmoe recipe add takes recipes")
	case len(b) == 0:
		return fault.Corruptf("empty")
	}
	return nil
}
