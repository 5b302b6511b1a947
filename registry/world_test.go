package registry_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/cosign"
	"github.com/bigmoe/bigmoe/registry/store"
)

// world is a machine with a store, a layout folder and a registry, all of its own.
type world struct {
	*testing.T
	dir    string // of the store
	layout string // folder
	host   string // of the registry
	// answer, if set, answers requests in place of the registry unless it returns false.
	answer func(w http.ResponseWriter, r *http.Request) bool

	manifests []ocispec.Descriptor // of the layout
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, dir: filepath.Join(t.TempDir(), "store"), layout: filepath.Join(t.TempDir(), "layout")}
	inner := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.answer == nil || !w.answer(rw, r) {
			inner.ServeHTTP(rw, r)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(server.Close)
	w.host = strings.TrimPrefix(server.URL, "http://")
	return w
}

// registry returns a registry on the store, which has a built-in recipe and backend besides.
func (w *world) registry() *registry.Registry {
	return registry.New(registry.Config{
		Store: store.New(w.dir), BuiltIn: []string{"qwen3moe"},
		Lookup:   func(name string) ([]byte, bool) { return []byte(magic), name == "qwen3moe" },
		Backends: map[string]engine.Backend{"cpu": {Path: "/bin/cpu"}},
	})
}

func (w *world) install(req registry.Request) (registry.Offer, error) {
	if req.Kind == "" {
		req.Kind = artifact.Recipe
	}
	return w.registry().Install(w.Context(), req)
}

// add installs a recipe and returns only what went wrong.
func (w *world) add(ref string) error {
	_, err := w.install(registry.Request{Ref: ref})
	return err
}

// added installs a recipe called mine, by way of the layout, and returns its digest.
func (w *world) added(module string) digest.Digest {
	w.Helper()
	ref, _ := w.publish("mine", module, "oci:"+w.layout+":added")
	o, err := w.install(registry.Request{Ref: ref, Update: true})
	require.NoError(w, err)
	return o.Entry.Digest
}

func (w *world) find(name string) error {
	_, err := w.registry().Find(name)
	return err
}

// publish pushes a recipe to ref; "" means the registry.
func (w *world) publish(name, module, ref string) (string, digest.Digest) {
	w.Helper()
	if ref == "" {
		ref = w.host + "/some/" + name + ":1"
	}
	p, err := artifact.Pack(artifact.Recipe, name, map[string][]byte{"": []byte(magic + module)})
	require.NoError(w, err)
	return ref, w.push(p, ref)
}

func (w *world) push(p *artifact.Packed, ref string) digest.Digest {
	w.Helper()
	to, err := artifact.Parse(ref)
	require.NoError(w, err)
	d, err := p.Push(w.Context(), to, artifact.Config{})
	require.NoError(w, err)
	return d
}

// put writes a blob into the layout, whatever it is.
func (w *world) put(mediaType string, v any) ocispec.Descriptor {
	w.Helper()
	b, ok := v.([]byte)
	if !ok {
		var err error
		b, err = json.Marshal(v)
		require.NoError(w, err)
	}
	d := content.NewDescriptorFromBytes(mediaType, b)
	write(w.T, filepath.Join(w.layout, artifact.BlobPath(d.Digest)), string(b))
	return d
}

// tag names a blob of the layout.
func (w *world) tag(d ocispec.Descriptor) string {
	w.Helper()
	tag := fmt.Sprintf("t%d", len(w.manifests))
	d.Annotations = map[string]string{ocispec.AnnotationRefName: tag}
	w.manifests = append(w.manifests, d)
	text, err := json.Marshal(ocispec.Index{Manifests: w.manifests})
	require.NoError(w, err)
	write(w.T, filepath.Join(w.layout, "index.json"), string(text))
	write(w.T, filepath.Join(w.layout, "oci-layout"), `{"imageLayoutVersion":"1.0.0"}`)
	return "oci:" + w.layout + ":" + tag
}

// odd publishes a recipe to the layout whose manifest was changed.
func (w *world) odd(change func(m *ocispec.Manifest)) string {
	w.Helper()
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifact.TypeRecipe}
	layer := w.put(artifact.TypeModule, []byte(magic))
	layer.Annotations = map[string]string{ocispec.AnnotationTitle: "odd.wasm"}
	m.Layers = []ocispec.Descriptor{layer}
	change(&m)
	return w.tag(w.put(m.MediaType, m))
}

// backend publishes a backend to the layout whose index was changed.
func (w *world) backend(change func(i *ocispec.Index)) string {
	w.Helper()
	layer := w.put(artifact.TypeProgram, []byte("#!/bin/sh\n"))
	layer.Annotations = map[string]string{ocispec.AnnotationTitle: "odd"}
	manifest := w.put(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifact.TypeBackend, Layers: []ocispec.Descriptor{layer}})
	os, arch, _ := strings.Cut(store.Platform, "/")
	manifest.Platform = &ocispec.Platform{OS: os, Architecture: arch}
	i := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, ArtifactType: artifact.TypeBackend, Manifests: []ocispec.Descriptor{manifest}}
	change(&i)
	return w.tag(w.put(i.MediaType, i))
}

func (w *world) addBackend(ref string) error {
	_, err := w.install(registry.Request{Kind: artifact.Backend, Ref: ref, Consent: func(registry.Offer) error { return nil }})
	return err
}

// signer has a key pair as cosign generate-key-pair makes them.
type signer struct {
	private *ecdsa.PrivateKey
	public  *cosign.Key
	pem     []byte
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	require.NoError(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	public, err := cosign.ParseKey(text)
	require.NoError(t, err)
	return &signer{private, public, text}
}

// payload is what cosign sign writes.
func payload(d digest.Digest) string {
	return fmt.Sprintf(`{"critical":{"identity":{"docker-reference":"example.com/some/mine"},`+
		`"image":{"docker-manifest-digest":"%s"},"type":"cosign container image signature"},"optional":null}`, d)
}

func (s *signer) sign(t *testing.T, payload string) []byte {
	t.Helper()
	sum := sha256.Sum256([]byte(payload))
	value, err := ecdsa.SignASN1(rand.Reader, s.private, sum[:])
	require.NoError(t, err)
	return value
}

// attach puts a signature into the layout in the way of cosign attach signature.
func (w *world) attach(d digest.Digest, payload string, value []byte, copies int) {
	w.Helper()
	ctx := context.Background()
	to, err := oci.New(w.layout)
	require.NoError(w, err)
	layer, err := oras.PushBytes(ctx, to, cosign.MediaType, []byte(payload))
	if err != nil { // there already
		layer = content.NewDescriptorFromBytes(cosign.MediaType, []byte(payload))
	}
	layer.Annotations = map[string]string{cosign.Annotation: base64.StdEncoding.EncodeToString(value)}
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: ocispec.DescriptorEmptyJSON}
	for range copies {
		m.Layers = append(m.Layers, layer)
	}
	_, _ = oras.PushBytes(ctx, to, ocispec.MediaTypeEmptyJSON, []byte("{}")) // may be there already
	m.SchemaVersion = 2
	text, err := json.Marshal(m)
	require.NoError(w, err)
	manifest := content.NewDescriptorFromBytes(ocispec.MediaTypeImageManifest, text)
	require.NoError(w, to.Push(ctx, manifest, bytes.NewReader(text)))
	require.NoError(w, to.Tag(ctx, manifest, cosign.Tag(d.String())))
}

// signed publishes a recipe called mine to the layout, signed by s.
func (w *world) signed(s *signer, module string) (ref string, d digest.Digest) {
	w.Helper()
	ref, d = w.publish("mine", module, "oci:"+w.layout+":signed")
	w.attach(d, payload(d), s.sign(w.T, payload(d)), 1)
	return ref, d
}

// blob returns the path of content in the store.
func (w *world) blob(d digest.Digest) string { return filepath.Join(w.dir, artifact.BlobPath(d)) }

// module returns the digest that the module of publish(…, module, …) has.
func module(text string) digest.Digest { return digest.FromString(magic + text) }

// spoil changes a byte of a file.
func (w *world) spoil(path string) {
	w.Helper()
	b, err := os.ReadFile(path)
	require.NoError(w, err)
	b[len(b)-1] ^= 1
	w.replace(path, string(b))
}

// replace puts other content in the place of a file, which may be read-only.
func (w *world) replace(path, content string) {
	w.Helper()
	require.NoError(w, os.RemoveAll(path))
	write(w.T, path, content)
}
