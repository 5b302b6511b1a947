package registry_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/backend"
	"github.com/bigmoe/bigmoe/engine/recipehost"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/cosign"
	"github.com/bigmoe/bigmoe/registry/store"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

func TestInstall(t *testing.T) {
	w := newWorld(t)
	inRegistry, d := w.publish("mine", "content", "")
	inLayout, same := w.publish("mine", "content", "oci:"+w.layout+":1.2")
	require.Equal(t, d, same, "the same module makes the same artifact")
	file := write(t, filepath.Join(t.TempDir(), "mine.wasm"), magic+"content")
	repository := strings.TrimSuffix(inRegistry, ":1")

	for _, ref := range []string{inRegistry, repository + "@" + d.String(), inLayout, "oci:" + w.layout + "@" + d.String(), file} {
		o, err := w.install(registry.Request{Ref: ref})
		require.NoError(t, err, ref)
		require.Equal(t, registry.Offer{Name: "mine", Entry: store.Entry{Source: ref, Digest: d}, File: module("content"), Bytes: 15,
			Pinned: ref != inRegistry}, o)
	}

	// No network, and no layout, from now on.
	w.answer = nil
	require.NoError(t, os.RemoveAll(w.layout))
	w.host = "127.0.0.1:1"
	r := w.registry()
	got, err := r.Find("mine")
	require.NoError(t, err)
	require.Equal(t, engine.Recipe{Name: "mine", Module: []byte(magic + "content")}, got)
	list, err := r.Recipes()
	require.NoError(t, err)
	require.Equal(t, registry.Recipe{Name: "mine", Origin: file, Bytes: 15, SHA256: module("content").Encoded()}, list[0])
	require.Equal(t, "qwen3moe", list[1].Name)

	findings, err := r.Verify(artifact.Recipe)
	require.NoError(t, err)
	require.Equal(t, []store.Finding{{Name: "mine", Entry: store.Entry{Source: file, Digest: d}, Bytes: 15}}, findings)

	require.NoError(t, r.Uninstall(t.Context(), artifact.Recipe, "mine"))
	require.NoFileExists(t, w.blob(d))
	require.NoFileExists(t, w.blob(module("content")))
	_, err = r.Find("mine")
	require.Equal(t, fault.Unsupported, fault.KindOf(err))
	err = r.Uninstall(t.Context(), artifact.Recipe, "mine")
	require.ErrorContains(t, err, `no recipe "mine" in the store`)
	require.Equal(t, fault.User, fault.KindOf(err))
}

// What can be added can be run, as far as size goes.
func TestModuleLimit(t *testing.T) {
	require.EqualValues(t, recipehost.New(recipehost.Options{}).Bounds().MaxModuleBytes, artifact.MaxRecipeBytes)
	w := newWorld(t)
	ref := write(t, filepath.Join(t.TempDir(), "mine.wasm"), magic+strings.Repeat("x", artifact.MaxRecipeBytes))
	require.ErrorContains(t, w.add(ref), "4194312 bytes, expected at most 4194304")
}

// The lock file is for people: sorted, and the same for the same content.
func TestLockFile(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	for _, name := range []string{"b", "a"} {
		require.NoError(t, w.add(write(t, filepath.Join(dir, name+".wasm"), magic+name)))
	}
	text, err := os.ReadFile(filepath.Join(w.dir, store.LockFile))
	require.NoError(t, err)
	require.Equal(t, `{
  "version": 1,
  "recipes": {
    "a": {
      "source": "`+dir+`/a.wasm",
      "digest": "sha256:a44e2ba98b9cab36eb482a5c3830777bf39e2d1c6dcde785f2a5a0f4539a34fe"
    },
    "b": {
      "source": "`+dir+`/b.wasm",
      "digest": "sha256:251bf974260869088a613e837d478076bfca48177d48d32e101cafbc61b29ef5"
    }
  },
  "backends": {}
}
`, string(text))
}

// A store that was damaged is repaired by adding again, and what nobody needs any more goes.
func TestRepairAndSweep(t *testing.T) {
	w := newWorld(t)
	first := w.added("first")
	for _, path := range []string{w.blob(module("first")), w.blob(first)} {
		w.spoil(path)
		require.Error(t, w.find("mine"))
		findings, err := w.registry().Verify(artifact.Recipe)
		require.NoError(t, err)
		require.ErrorContains(t, findings[0].Err, "content was changed")
		w.added("first")
		require.NoError(t, w.find("mine"))
	}
	interrupted := write(t, filepath.Join(w.dir, "blobs/sha256/.new-ABC"), "half")
	stray := filepath.Join(w.dir, "blobs/sha256/stray")
	outside := write(t, filepath.Join(t.TempDir(), "outside"), "precious")
	require.NoError(t, os.Symlink(outside, stray))
	w.added("second")
	require.NoFileExists(t, interrupted)
	require.NoFileExists(t, stray)
	require.FileExists(t, outside)
	require.NoFileExists(t, w.blob(module("first")))
	require.NoError(t, w.find("mine"))
}

// Folders that were named come before what is built in, and that before what was added.
func TestPrecedence(t *testing.T) {
	w := newWorld(t)
	w.added("added")
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "mine", "mine.wasm"), magic+"folder")
	cfg := registry.Config{Store: store.New(w.dir), BuiltIn: []string{"mine"},
		Lookup: func(string) ([]byte, bool) { return []byte(magic + "built in"), true }}
	origin := func(cfg registry.Config) string {
		list, err := registry.New(cfg).Recipes()
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0].Origin
	}
	require.Equal(t, registry.BuiltIn, origin(cfg))
	cfg.RecipeDirs = []string{dir}
	require.Equal(t, path, origin(cfg))
	cfg.RecipeDirs, cfg.BuiltIn, cfg.Lookup = nil, nil, nil
	require.Equal(t, "oci:"+w.layout+":added", origin(cfg))
}

// A key that was asked for once is asked for ever after.
func TestKeyIsRemembered(t *testing.T) {
	w, me, other := newWorld(t), newSigner(t), newSigner(t)
	ref, first := w.signed(me, "first")
	w.attach(first, payload(first), other.sign(t, payload(first)), 1) // replaces the tag
	w.attach(first, payload(first), me.sign(t, payload(first)), 2)    // several are fine
	o, err := w.install(registry.Request{Ref: ref, Key: me.public})
	require.NoError(t, err)
	require.Equal(t, me.public, o.Entry.Key)
	require.NoError(t, w.find("mine"))

	ref, second := w.signed(me, "second")
	o, err = w.install(registry.Request{Ref: ref, Update: true})
	require.NoError(t, err)
	require.Equal(t, me.public, o.Entry.Key)
	require.Equal(t, second, o.Entry.Digest)
	entries, err := store.New(w.dir).Entries(artifact.Recipe)
	require.NoError(t, err)
	require.True(t, entries["mine"].Key.Equal(me.public))
	require.NoError(t, w.find("mine"))

	// Without a key at first: one can be asked for later.
	ref, _ = w.publish("free", "free", "oci:"+w.layout+":free")
	require.NoError(t, w.add(ref))
	_, err = w.install(registry.Request{Ref: ref, Key: me.public})
	require.ErrorContains(t, err, "is not signed")
	require.NoError(t, w.find("free"), "what was pinned still runs")
}

// A signature that we did not make: see testdata/sigstore.
func TestSignatureOfSigstore(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("testdata", "sigstore", name))
		require.NoError(t, err)
		return string(text)
	}
	key, err := cosign.ParseKey([]byte(read("cosign.pub")))
	require.NoError(t, err)
	value, err := base64.StdEncoding.DecodeString(strings.TrimSpace(read("signature")))
	require.NoError(t, err)
	w := newWorld(t)
	ref, d := w.publish("a", "a", "oci:"+w.layout+":1")
	require.Equal(t, read("payload.json"), strings.ReplaceAll(payload(d), "example.com/some/mine", "ghcr.io/someone/a"),
		"the payloads of the other tests are like this one")
	w.attach(d, read("payload.json"), value, 1)
	_, err = w.install(registry.Request{Ref: ref, Key: key})
	require.NoError(t, err)
	require.NoError(t, w.find("a"))
}

func TestBackendWithConsent(t *testing.T) {
	w := newWorld(t)
	p, err := artifact.Pack(artifact.Backend, "mine", map[string][]byte{
		store.Platform: []byte("#!/bin/sh\nexit 7\n"), "plan9/mips": []byte("other")})
	require.NoError(t, err)
	ref := w.host + "/some/mine:1"
	d := w.push(p, ref)

	var asked []registry.Offer
	answer := fault.Userf("no")
	ask := func(o registry.Offer) error { asked = append(asked, o); return answer }
	req := registry.Request{Kind: artifact.Backend, Ref: ref, Name: "other-name", Consent: ask}
	_, err = w.install(req)
	require.ErrorIs(t, err, answer)
	require.NoFileExists(t, w.dir)
	program := digest.FromString("#!/bin/sh\nexit 7\n")
	require.Equal(t, []registry.Offer{{Name: "other-name", Entry: store.Entry{Source: ref, Digest: d}, File: program, Bytes: 17}}, asked)

	answer = nil
	_, err = w.install(req)
	require.NoError(t, err)
	_, err = w.install(req)
	require.NoError(t, err)
	require.Len(t, asked, 2, "the pinned digest is not asked about again")

	list, err := w.registry().Backends()
	require.NoError(t, err)
	require.Len(t, list, 2)
	b := list[1]
	require.Equal(t, "other-name", b.Name)
	require.Equal(t, ref, b.Origin)
	require.Equal(t, program.Encoded(), digest.NewDigestFromBytes(digest.SHA256, b.SHA256).Encoded())
	info, err := os.Stat(b.Path)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&0o100, "executable")

	require.NoError(t, w.registry().Uninstall(t.Context(), artifact.Backend, "other-name"))
	require.NoFileExists(t, b.Path)
}

// A program that is changed after it was found is not started.
func TestProgramIsCheckedAtStart(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.addBackend(w.backend(func(*ocispec.Index) {})))
	b, err := w.registry().FindBackend("odd")
	require.NoError(t, err)
	shared, err := memory.Create(1)
	require.NoError(t, err)
	defer shared.Close()
	start := func() error {
		_, err := backend.Start(t.Context(), backend.Options{Path: b.Path, SHA256: b.SHA256, Memory: shared})
		return err
	}
	require.ErrorContains(t, start(), "is not a backend: it ended")
	w.spoil(b.Path)
	err = start()
	require.ErrorContains(t, err, "sha256 is ")
	require.Equal(t, fault.Corrupt, fault.KindOf(err))
	_, err = w.registry().FindBackend("odd")
	require.ErrorContains(t, err, "content was changed")
}

func TestPushRefuses(t *testing.T) {
	p, err := artifact.Pack(artifact.Recipe, "mine", map[string][]byte{"": []byte(magic)})
	require.NoError(t, err)
	dir := t.TempDir()
	for ref, say := range map[string]string{
		dir + "/file":                            "is a file: expected a registry",
		"oci:" + dir + "@" + module("").String(): "expected a tag",
		"oci:" + write(t, filepath.Join(dir, "file"), "") + "/x:1": "not a directory",
		"127.0.0.1:1/some/mine:1":                                  "connection refused",
	} {
		to, err := artifact.Parse(ref)
		require.NoError(t, err)
		_, err = p.Push(t.Context(), to, artifact.Config{})
		require.ErrorContains(t, err, say, ref)
	}
	_, err = artifact.Pack(artifact.Recipe, "../x", nil)
	require.ErrorContains(t, err, "cannot be the name of a recipe")
	_, err = artifact.Pack(artifact.Backend, "x", map[string][]byte{"linux": {1}})
	require.ErrorContains(t, err, "expected such as linux/amd64")
}

// Who pushes to a layout folder while others do loses nothing.
func TestPushAtOnce(t *testing.T) {
	w := newWorld(t)
	const pushes = 8
	var all sync.WaitGroup
	failed := make([]error, pushes)
	for i := range pushes {
		p, err := artifact.Pack(artifact.Recipe, fmt.Sprint("n", i), map[string][]byte{"": []byte(magic)})
		require.NoError(t, err)
		to, err := artifact.Parse(fmt.Sprintf("oci:%s:%d", w.layout, i))
		require.NoError(t, err)
		all.Go(func() { _, failed[i] = p.Push(t.Context(), to, artifact.Config{}) })
	}
	all.Wait()
	for i := range pushes {
		require.NoError(t, failed[i])
		require.NoError(t, w.add(fmt.Sprintf("oci:%s:%d", w.layout, i)))
		require.NoError(t, w.find(fmt.Sprint("n", i)))
	}
}

// Credentials are docker's; a registry that wants some says so when there are none.
func TestCredentials(t *testing.T) {
	w := newWorld(t)
	ref, _ := w.publish("mine", "content", "")
	w.answer = func(rw http.ResponseWriter, r *http.Request) bool {
		if user, password, ok := r.BasicAuth(); ok && user == "me" && password == "secret" {
			return false
		}
		rw.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		rw.WriteHeader(http.StatusUnauthorized)
		return true
	}
	config := filepath.Join(t.TempDir(), "config.json")
	req := registry.Request{Ref: ref, Access: artifact.Config{DockerConfig: config}}
	_, err := w.install(req)
	require.ErrorContains(t, err, "basic credential not found")

	write(t, config, `{"auths": {"`+w.host+`": {"auth": "bWU6c2VjcmV0"}}}`)
	_, err = w.install(req)
	require.NoError(t, err)

	write(t, config, "hello")
	_, err = w.install(req)
	require.ErrorContains(t, err, config)
	require.Equal(t, fault.User, fault.KindOf(err))
}

// Other machines are reached over TLS, and not without unless that was asked for.
func TestTLS(t *testing.T) {
	inner := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	redirect := false
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if redirect && r.TLS != nil {
			http.Redirect(rw, r, "http://example.com"+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		inner.ServeHTTP(rw, r)
	})
	secure, plain := httptest.NewUnstartedServer(handler), httptest.NewServer(handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes
	secure.StartTLS()
	defer secure.Close()
	defer plain.Close()
	transport := secure.Client().Transport.(*http.Transport).Clone() // knows the certificate
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		to := map[string]net.Listener{"example.com:443": secure.Listener, "example.com:80": plain.Listener}[address]
		return (&net.Dialer{}).DialContext(ctx, network, to.Addr().String())
	}
	w := newWorld(t)
	p, err := artifact.Pack(artifact.Recipe, "mine", map[string][]byte{"": []byte(magic)})
	require.NoError(t, err)
	ref, err := artifact.Parse("example.com/some/mine:1")
	require.NoError(t, err)
	access := artifact.Config{Transport: transport}
	_, err = p.Push(t.Context(), ref, access)
	require.NoError(t, err)
	_, err = w.install(registry.Request{Ref: ref.String(), Access: access})
	require.NoError(t, err)

	redirect = true
	_, err = w.install(registry.Request{Ref: ref.String(), Access: access})
	require.ErrorContains(t, err, "refused to talk to example.com without TLS: --plain-http allows it")
	require.Equal(t, fault.User, fault.KindOf(err))
	access.PlainHTTP = true
	_, err = w.install(registry.Request{Ref: ref.String(), Access: access})
	require.NoError(t, err)

	_, err = w.install(registry.Request{Ref: ref.String(), Access: artifact.Config{Transport: &http.Transport{DialContext: transport.DialContext}}})
	require.ErrorContains(t, err, "certificate")
}
