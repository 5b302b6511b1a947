package artifact

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/bigmoe/bigmoe/registry/cosign"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Limits of signatures.
const (
	maxSignatures   = 32
	maxPayloadBytes = 64 << 10
)

// Source is the place that a reference names, with what the reference stands for there.
type Source struct {
	Root ocispec.Descriptor

	from  target
	close func() error
}

var _ content.Fetcher = (*Source)(nil)

// target is a place that artifacts come from.
type target interface {
	content.Fetcher
	content.Resolver
}

// Connect finds what ref stands for. A file is made into an artifact of the given kind, for the given platform if it is a
// backend.
func Connect(ctx context.Context, ref Ref, kind Kind, platform string, cfg Config) (*Source, error) {
	s := &Source{close: func() error { return nil }}
	var err error
	switch ref.place {
	case inFile:
		packed, err := PackFile(kind, ref.path, platform)
		if err != nil {
			return nil, err
		}
		s.from, s.Root = packed, packed.Root
		return s, nil
	case inLayout:
		root, err := os.OpenRoot(ref.path)
		if err != nil {
			return nil, fault.As(fault.User, err)
		}
		s.from, s.close = Folder{root}, root.Close
	case inRegistry:
		if s.from, err = cfg.repository(ref); err != nil {
			return nil, err
		}
	}
	if s.Root, err = s.from.Resolve(ctx, ref.tag()); err != nil {
		s.Close()
		if errors.Is(err, errdef.ErrNotFound) {
			err = errdef.ErrNotFound // without the reference: callers say it
		}
		return nil, refusal(err)
	}
	return s, nil
}

// Fetch opens a blob, which is not checked yet: [Read] does that.
func (s *Source) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	return s.from.Fetch(ctx, d)
}

// Close ends the use of the source.
func (s *Source) Close() error { return s.close() }

// Signatures returns the signatures of the artifact, none of them checked.
func (s *Source) Signatures(ctx context.Context) ([]cosign.Signature, error) {
	tag := cosign.Tag(s.Root.Digest.String())
	d, err := s.from.Resolve(ctx, tag)
	if errors.Is(err, errdef.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("signatures %s: %w", tag, err)
	}
	text, err := Read(ctx, s.from, d, maxDocumentBytes)
	if err != nil {
		return nil, fmt.Errorf("signatures %s: %w", tag, err)
	}
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fault.Corruptf("signatures %s: %w", tag, err)
	}
	if len(doc.Layers) > maxSignatures {
		return nil, fault.Unsupportedf("signatures %s: %d of them, expected at most %d", tag, len(doc.Layers), maxSignatures)
	}
	var list []cosign.Signature
	for _, layer := range doc.Layers {
		if layer.MediaType != cosign.MediaType {
			continue
		}
		value, err := base64.StdEncoding.DecodeString(layer.Annotations[cosign.Annotation])
		if err != nil {
			return nil, fault.Corruptf("signatures %s: annotation %s: %w", tag, cosign.Annotation, err)
		}
		payload, err := Read(ctx, s.from, layer, maxPayloadBytes)
		if err != nil {
			return nil, fmt.Errorf("signatures %s: %w", tag, err)
		}
		list = append(list, cosign.Signature{Payload: payload, Value: value})
	}
	return list, nil
}
