package artifact

import (
	"context"
	"encoding/json"
	"path"
	"regexp"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Kind is what an artifact is.
type Kind string

// The kinds.
const (
	Recipe  Kind = "recipe"
	Backend Kind = "backend"
)

// Media types.
const (
	TypeRecipe  = "application/vnd.bigmoe.recipe.v1"  // artifactType of the manifest
	TypeBackend = "application/vnd.bigmoe.backend.v1" // artifactType of the index and of its manifests
	TypeModule  = "application/wasm"                  // the layer of a recipe
	TypeProgram = "application/vnd.bigmoe.backend.program.v1"
)

// Limits on what is read from elsewhere.
const (
	MaxRecipeBytes   = 4 << 20 // what package recipehost takes; those in Go have 2 MiB
	MaxBackendBytes  = 512 << 20
	maxDocumentBytes = 256 << 10 // manifests, indexes
	maxPlatforms     = 64
)

// MaxBytes returns the limit of the file in an artifact.
func (k Kind) MaxBytes() int64 {
	if k == Backend {
		return MaxBackendBytes
	}
	return MaxRecipeBytes
}

func (k Kind) types() (artifactType, layerType string) {
	if k == Backend {
		return TypeBackend, TypeProgram
	}
	return TypeRecipe, TypeModule
}

// Artifact is an artifact as far as one machine needs it. The documents are there, the file is not.
type Artifact struct {
	Documents []Blob             // what leads to the file: the manifest of a recipe, index and manifest of a backend
	File      ocispec.Descriptor // the module or program
	Name      string             // what the publisher calls it; "" if nothing that [ValidName] accepts
	Title     string             // what that was made from
}

// Blob is content with its descriptor.
type Blob struct {
	Descriptor ocispec.Descriptor
	Bytes      []byte
}

// document is what matters of a manifest and of an index.
type document struct {
	MediaType    string               `json:"mediaType"`
	ArtifactType string               `json:"artifactType"`
	Layers       []ocispec.Descriptor `json:"layers"`
	Manifests    []ocispec.Descriptor `json:"manifests"`
}

// Open reads the documents of the artifact whose digest root has. platform ("linux/amd64") selects the program of a backend.
func Open(ctx context.Context, from content.Fetcher, root ocispec.Descriptor, kind Kind, platform string) (*Artifact, error) {
	a := &Artifact{}
	artifactType, layerType := kind.types()
	if kind == Backend {
		index, err := a.document(ctx, from, root, ocispec.MediaTypeImageIndex, artifactType)
		if err != nil {
			return nil, err
		}
		if root, err = choose(index.Manifests, platform); err != nil {
			return nil, err
		}
	}
	manifest, err := a.document(ctx, from, root, ocispec.MediaTypeImageManifest, artifactType)
	if err != nil {
		return nil, err
	}
	if len(manifest.Layers) != 1 {
		return nil, fault.Unsupportedf("manifest %s: %d layers, expected 1", root.Digest, len(manifest.Layers))
	}
	a.File = manifest.Layers[0]
	if a.File.MediaType != layerType {
		return nil, fault.Unsupportedf("manifest %s: the layer is %q, expected %q", root.Digest, a.File.MediaType, layerType)
	}
	a.Title = a.File.Annotations[ocispec.AnnotationTitle]
	if name := strings.TrimSuffix(a.Title, ".wasm"); ValidName(name) {
		a.Name = name
	}
	return a, checkDescriptor(a.File, kind.MaxBytes())
}

// document reads one of the documents and keeps it.
func (a *Artifact) document(ctx context.Context, from content.Fetcher, d ocispec.Descriptor, mediaType, artifactType string) (*document, error) {
	text, err := Read(ctx, from, d, maxDocumentBytes)
	if err != nil {
		return nil, err
	}
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fault.Corruptf("manifest %s: %w", d.Digest, err)
	}
	if doc.MediaType != mediaType || doc.ArtifactType != artifactType {
		for _, other := range []Kind{Recipe, Backend} {
			if t, _ := other.types(); doc.ArtifactType == t && t != artifactType {
				return nil, fault.Unsupportedf("%s is a %s: bigmoe %[2]s add takes it", d.Digest, other)
			}
		}
		return nil, fault.Unsupportedf("%s is %q of type %q, expected %q of type %q", d.Digest, doc.MediaType, doc.ArtifactType, mediaType, artifactType)
	}
	d.MediaType = mediaType
	a.Documents = append(a.Documents, Blob{d, text})
	return &doc, nil
}

// choose returns the manifest for a platform.
func choose(manifests []ocispec.Descriptor, platform string) (ocispec.Descriptor, error) {
	if len(manifests) > maxPlatforms {
		return ocispec.Descriptor{}, fault.Unsupportedf("the index has %d manifests, expected at most %d", len(manifests), maxPlatforms)
	}
	var there []string
	var found []ocispec.Descriptor
	for _, m := range manifests {
		if m.Platform == nil {
			continue
		}
		p := path.Join(m.Platform.OS, m.Platform.Architecture)
		there = append(there, p)
		if p == platform {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 0:
		return ocispec.Descriptor{}, fault.Unsupportedf("there is no program for %s, only for %q", platform, there)
	case 1:
		return found[0], nil
	}
	return ocispec.Descriptor{}, fault.Corruptf("there are %d programs for %s, expected 1", len(found), platform)
}

// Name rules. What Windows means by a device or would shorten is no name anywhere: stores and folders are carried around.
var (
	nameRule   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?$`)
	deviceRule = regexp.MustCompile(`(?i)^(con|prn|aux|nul|com\d|lpt\d)(\.|$)`)
)

// ValidName reports whether name may be that of a recipe or backend. No such name leads out of a folder.
func ValidName(name string) bool {
	return nameRule.MatchString(name) && !deviceRule.MatchString(name)
}
