package registry_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/store"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// hostile is a thing that somebody does to us, and what must come of it. docs/hostile.md lists them by name.
type hostile struct {
	name string
	do   func(w *world) error
	kind fault.Kind
	say  string // part of the error
}

func runHostile(t *testing.T, cases []hostile) {
	page, err := os.ReadFile("../docs/hostile.md")
	require.NoError(t, err)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := c.do(newWorld(t))
			require.ErrorContains(t, err, c.say)
			require.Equal(t, c.kind, fault.KindOf(err), "%v", err)
			row := regexp.MustCompile("(?m)^\\| `" + c.name + "` \\|.*\\|$").FindString(string(page))
			require.Regexp(t, fmt.Sprintf(`\((%d|130)\)`, c.kind.ExitCode()), row, "the row of %s in docs/hostile.md", c.name)
		})
	}
}

// Registries that fail or lie on the way.
func TestHostileRegistry(t *testing.T) {
	blobs := func(w *world, answer http.HandlerFunc) error {
		ref, _ := w.publish("mine", "content", "")
		w.answer = func(rw http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, module("content").String()) {
				return false
			}
			answer(rw, r)
			return true
		}
		return w.add(ref)
	}
	whole := magic + "content"
	runHostile(t, []hostile{
		{"registry-down", func(w *world) error { return w.add("127.0.0.1:1/some/mine:1") }, fault.Unknown, "connection refused"},
		{"registry-denies", func(w *world) error {
			w.answer = func(rw http.ResponseWriter, _ *http.Request) bool {
				rw.WriteHeader(http.StatusForbidden)
				fmt.Fprint(rw, `{"errors": [{"code": "DENIED", "message": "requested access is denied"}]}`)
				return true
			}
			return w.add(w.host + "/some/mine:1")
		}, fault.User, "403"},
		{"tag-absent", func(w *world) error { return w.add(w.host + "/some/absent:1") }, fault.User, "not found"},
		{"tag-moved", func(w *world) error {
			ref, first := w.publish("mine", "first", "")
			require.NoError(w, w.add(ref))
			_, second := w.publish("mine", "second", ref)
			err := w.add(ref)
			require.ErrorContains(w, err, first.String())
			require.ErrorContains(w, err, second.String())
			require.NoError(w, w.find("mine"), "what was pinned still runs")
			_, updated := w.install(registry.Request{Ref: ref, Update: true})
			require.NoError(w, updated)
			return err
		}, fault.User, "--update takes it"},
		{"tag-renamed", func(w *world) error {
			ref, _ := w.publish("mine", "first", "")
			require.NoError(w, w.add(ref))
			w.publish("other", "second", ref)
			err := w.add(ref)
			require.Error(w, w.find("other"))
			_, updated := w.install(registry.Request{Ref: ref, Update: true})
			require.NoError(w, updated)
			require.NoError(w, w.add(ref), "what it stands for now is pinned, too")
			require.NoError(w, w.find("mine"))
			return err
		}, fault.User, ", called other: --update takes it"},
		{"blob-tampered", func(w *world) error {
			return blobs(w, func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, magic+"CONTENT") })
		}, fault.Corrupt, "content was changed: it is sha256:"},
		{"blob-truncated", func(w *world) error {
			return blobs(w, func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Length", strconv.Itoa(len(whole)))
				fmt.Fprint(rw, whole[:10])
			})
		}, fault.Corrupt, "ended after 10 bytes, expected 15"},
		{"blob-length", func(w *world) error {
			return blobs(w, func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, magic) })
		}, fault.Unknown, "mismatch Content-Length"},
		{"blob-endless", func(w *world) error {
			return blobs(w, func(rw http.ResponseWriter, _ *http.Request) {
				for err := error(nil); err == nil; { // chunked
					_, err = fmt.Fprint(rw, strings.Repeat("x", 1<<16))
				}
			})
		}, fault.Corrupt, "more than the 15 bytes"},
		{"blob-elsewhere", func(w *world) error {
			return blobs(w, func(rw http.ResponseWriter, r *http.Request) {
				http.Redirect(rw, r, "http://192.0.2.1/blob", http.StatusTemporaryRedirect)
			})
		}, fault.User, "refused to talk to 192.0.2.1 without TLS"},
		{"manifest-tampered", func(w *world) error {
			ref, d := w.publish("mine", "content", "")
			p, err := artifact.Pack(artifact.Recipe, "mine", map[string][]byte{"": []byte(whole)})
			require.NoError(w, err)
			w.answer = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") {
					return false
				}
				rw.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
				rw.Header().Set("Docker-Content-Digest", d.String())
				fmt.Fprintf(rw, "%*s", p.Root.Size, "{}")
				return true
			}
			return w.add(ref)
		}, fault.Corrupt, "content was changed"},
		{"manifest-huge", func(w *world) error {
			ref, d := w.publish("mine", "content", "")
			w.answer = func(rw http.ResponseWriter, r *http.Request) bool {
				rw.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
				rw.Header().Set("Docker-Content-Digest", d.String())
				rw.Header().Set("Content-Length", "1000000000")
				return strings.Contains(r.URL.Path, "/manifests/")
			}
			return w.add(ref)
		}, fault.Unsupported, "1000000000 bytes, expected at most 262144"},
		{"registry-silent", func(w *world) error {
			ref, _ := w.publish("mine", "content", "")
			w.answer = func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
			_, err := w.install(registry.Request{Ref: ref, Timeout: 50 * time.Millisecond})
			return err
		}, fault.Unknown, "it took longer than 50ms"},
		{"registry-interrupted", func(w *world) error {
			ref, _ := w.publish("mine", "content", "")
			ctx, cancel := context.WithCancelCause(w.Context())
			w.answer = func(_ http.ResponseWriter, r *http.Request) bool {
				cancel(fault.Userf("stopped by a person"))
				<-r.Context().Done()
				return true
			}
			_, err := w.registry().Install(ctx, registry.Request{Kind: artifact.Recipe, Ref: ref})
			return err
		}, fault.User, "stopped by a person"},
	})
}

// Artifacts that are not what they should be.
func TestHostileArtifact(t *testing.T) {
	layer := func(change func(d *ocispec.Descriptor)) func(w *world) error {
		return func(w *world) error {
			return w.add(w.odd(func(m *ocispec.Manifest) { change(&m.Layers[0]) }))
		}
	}
	title := func(title string) func(w *world) error {
		return layer(func(d *ocispec.Descriptor) { d.Annotations[ocispec.AnnotationTitle] = title })
	}
	index := func(change func(i *ocispec.Index)) func(w *world) error {
		return func(w *world) error { return w.addBackend(w.backend(change)) }
	}
	runHostile(t, []hostile{
		{"title-outside", title("../../x"), fault.Unsupported, `title "../../x" cannot be the name`},
		{"title-absolute", title("/etc/passwd"), fault.Unsupported, "cannot be the name"},
		{"title-hidden", title(".bashrc"), fault.Unsupported, "cannot be the name"},
		{"title-control", title("x\x1b[2J.wasm"), fault.Unsupported, `\x1b`},
		{"title-absent", title(""), fault.Unsupported, "--name"},
		{"name-built-in", title("qwen3moe.wasm"), fault.User, "qwen3moe is built in"},
		{"digest-path", layer(func(d *ocispec.Descriptor) { d.Digest = "sha256:../../../../etc/passwd" }), fault.Corrupt, "digest"},
		{"digest-other", layer(func(d *ocispec.Descriptor) { d.Digest = "md5:d41d8cd98f00b204e9800998ecf8427e" }), fault.Corrupt, "digest"},
		{"layer-huge", layer(func(d *ocispec.Descriptor) { d.Size = 1 << 40 }), fault.Unsupported, "1099511627776 bytes, expected at most"},
		{"layer-negative", layer(func(d *ocispec.Descriptor) { d.Size = -1 }), fault.Unsupported, "-1 bytes"},
		{"layer-type", layer(func(d *ocispec.Descriptor) { d.MediaType = "application/x-sh" }), fault.Unsupported, `"application/x-sh", expected "application/wasm"`},
		{"layers-many", func(w *world) error {
			return w.add(w.odd(func(m *ocispec.Manifest) { m.Layers = append(m.Layers, m.Layers[0]) }))
		}, fault.Unsupported, "2 layers, expected 1"},
		{"manifest-image", func(w *world) error {
			return w.add(w.odd(func(m *ocispec.Manifest) { m.ArtifactType = "" }))
		}, fault.Unsupported, `of type ""`},
		{"manifest-docker", func(w *world) error {
			return w.add(w.odd(func(m *ocispec.Manifest) { m.MediaType = "application/vnd.docker.distribution.manifest.v2+json" }))
		}, fault.Unsupported, "docker"},
		{"manifest-garbage", func(w *world) error { return w.add(w.tag(w.put("", []byte("{")))) }, fault.Corrupt, "unexpected end"},
		{"module-garbage", func(w *world) error {
			return w.add(w.odd(func(m *ocispec.Manifest) { m.Layers[0].Digest = w.put("", []byte("#!/bin/s")).Digest }))
		}, fault.Corrupt, "not a WebAssembly module"},
		{"program-module", func(w *world) error {
			return w.addBackend(write(w.T, filepath.Join(w.TempDir(), "mine"), magic))
		}, fault.Corrupt, "a WebAssembly module, expected a program"},
		{"backend-as-recipe", func(w *world) error { return w.add(w.backend(func(*ocispec.Index) {})) }, fault.Unsupported, "is a backend: bigmoe backend add takes it"},
		{"recipe-as-backend", func(w *world) error { return w.addBackend(w.odd(func(*ocispec.Manifest) {})) }, fault.Unsupported, "is a recipe: bigmoe recipe add takes it"},
		{"platform-absent", index(func(i *ocispec.Index) { i.Manifests[0].Platform.OS = "plan9" }), fault.Unsupported, `only for ["plan9/`},
		{"platform-twice", index(func(i *ocispec.Index) { i.Manifests = append(i.Manifests, i.Manifests[0]) }), fault.Corrupt, "2 programs"},
		{"platforms-many", index(func(i *ocispec.Index) {
			for range 1000 {
				i.Manifests = append(i.Manifests, i.Manifests[0])
			}
		}), fault.Unsupported, "1001 manifests, expected at most 64"},
		{"layout-link", func(w *world) error {
			ref, d := w.publish("mine", "content", "oci:"+w.layout+":1")
			secret := write(w.T, filepath.Join(w.TempDir(), "secret"), "secret")
			path := filepath.Join(w.layout, artifact.BlobPath(d))
			require.NoError(w, os.Remove(path))
			require.NoError(w, os.Symlink(secret, path))
			return w.add(ref)
		}, fault.Corrupt, "expected a regular file"},
		{"layout-pipe", func(w *world) error {
			ref, d := w.publish("mine", "content", "oci:"+w.layout+":1")
			path := filepath.Join(w.layout, artifact.BlobPath(d))
			require.NoError(w, os.Remove(path))
			pipe(w, path)
			return w.add(ref)
		}, fault.Corrupt, "expected a regular file"},
		{"layout-tag-twice", func(w *world) error {
			ref := w.odd(func(*ocispec.Manifest) {})
			w.manifests = append(w.manifests, w.manifests[0])
			w.manifests[1].Digest = module("other")
			w.tag(ocispec.Descriptor{})
			return w.add(ref)
		}, fault.Corrupt, "is both"},
	})
}

// pipe makes a named pipe.
func pipe(w *world, path string) {
	w.Helper()
	if err := exec.Command("mkfifo", path).Run(); err != nil {
		w.Skipf("no named pipes here: %v", err)
	}
}

// Signatures that are missing, wrong, or of something else.
func TestHostileSignature(t *testing.T) {
	me, other := newSigner(t), newSigner(t)
	// with requires the key of me for an artifact whose signature is made by sign.
	with := func(text func(w *world, own string) string, by *signer, copies int) func(w *world) error {
		return func(w *world) error {
			ref, d := w.publish("mine", "content", "oci:"+w.layout+":1")
			p := text(w, payload(d))
			w.attach(d, p, by.sign(w.T, p), copies)
			_, err := w.install(registry.Request{Ref: ref, Key: me.public})
			return err
		}
	}
	own := func(_ *world, own string) string { return own }
	runHostile(t, []hostile{
		{"signature-absent", func(w *world) error {
			ref, _ := w.publish("mine", "content", "")
			_, err := w.install(registry.Request{Ref: ref, Key: me.public})
			return err
		}, fault.Corrupt, "is not signed"},
		{"signature-absent-file", func(w *world) error {
			_, err := w.install(registry.Request{Ref: write(w.T, filepath.Join(w.TempDir(), "mine.wasm"), magic), Key: me.public})
			return err
		}, fault.Corrupt, "is not signed"},
		{"signature-other-key", with(own, other, 1), fault.Corrupt, "is not by key"},
		{"signature-changed", func(w *world) error {
			ref, d := w.publish("mine", "content", "oci:"+w.layout+":1")
			w.attach(d, payload(d), me.sign(w.T, payload(d)+" "), 1)
			_, err := w.install(registry.Request{Ref: ref, Key: me.public})
			return err
		}, fault.Corrupt, "or was changed"},
		{"signature-replayed", with(func(*world, string) string { return payload(module("another")) }, me, 1), fault.Corrupt,
			`the signature is of "` + module("another").String()},
		{"signature-of-else", with(func(_ *world, own string) string {
			return strings.ReplaceAll(own, "cosign container image signature", "atomic container signature")
		}, me, 1), fault.Corrupt, `type "atomic container signature"`},
		{"signature-no-json", with(func(*world, string) string { return "signed" }, me, 1), fault.Corrupt, "payload"},
		{"signatures-many", with(own, me, 40), fault.Unsupported, "expected at most 32"},
		{"update-unsigned", func(w *world) error {
			ref, _ := w.signed(me, "first")
			_, err := w.install(registry.Request{Ref: ref, Key: me.public})
			require.NoError(w, err)
			w.publish("mine", "second", ref)
			_, err = w.install(registry.Request{Ref: ref, Update: true})
			return err
		}, fault.Corrupt, "is not signed"},
		{"update-renamed", func(w *world) error {
			ref, _ := w.signed(me, "first")
			_, err := w.install(registry.Request{Ref: ref, Key: me.public})
			require.NoError(w, err)
			w.publish("other", "second", ref)
			_, err = w.install(registry.Request{Ref: ref, Update: true})
			return err
		}, fault.Corrupt, "is not signed"},
		{"update-other-key", func(w *world) error {
			ref, _ := w.signed(me, "first")
			_, err := w.install(registry.Request{Ref: ref, Key: me.public})
			require.NoError(w, err)
			ref, _ = w.signed(other, "second")
			_, err = w.install(registry.Request{Ref: ref, Key: other.public, Update: true})
			return err
		}, fault.User, "is pinned to key " + me.public.Fingerprint()},
	})
}

// A store that somebody else has been at.
func TestHostileStore(t *testing.T) {
	me := newSigner(t)
	// after adds a recipe, lets something happen to the store and asks for the recipe.
	after := func(do func(w *world)) func(w *world) error {
		return func(w *world) error {
			w.added("content")
			do(w)
			return w.find("mine")
		}
	}
	content := module("content")
	lock := func(text string) func(w *world) error {
		return after(func(w *world) { w.replace(filepath.Join(w.dir, store.LockFile), text) })
	}
	edit := func(old, new string) func(w *world) {
		return func(w *world) {
			path := filepath.Join(w.dir, store.LockFile)
			text, err := os.ReadFile(path)
			require.NoError(w, err)
			require.Contains(w, string(text), old)
			w.replace(path, strings.ReplaceAll(string(text), old, new))
		}
	}
	link := func(path func(w *world) string) func(w *world) error {
		return after(func(w *world) {
			outside := filepath.Join(w.TempDir(), "outside")
			require.NoError(w, os.Rename(path(w), outside))
			require.NoError(w, os.Symlink(outside, path(w)))
		})
	}
	runHostile(t, []hostile{
		{"blob-changed", after(func(w *world) { w.spoil(w.blob(content)) }), fault.Corrupt, "content was changed"},
		{"blob-cut", after(func(w *world) { w.replace(w.blob(content), magic) }), fault.Corrupt, "ended after 8 bytes, expected 15"},
		{"blob-grown", after(func(w *world) { w.replace(w.blob(content), magic+"content and more") }), fault.Corrupt, "more than the 15 bytes"},
		{"blob-removed", after(func(w *world) { require.NoError(w, os.Remove(w.blob(content))) }), fault.Corrupt, "adding it again repairs that"},
		{"blob-link", link(func(w *world) string { return w.blob(content) }), fault.Corrupt, "expected a regular file"},
		{"blob-folder", after(func(w *world) {
			require.NoError(w, os.Remove(w.blob(content)))
			require.NoError(w, os.Mkdir(w.blob(content), 0o755))
		}), fault.Corrupt, "expected a regular file"},
		{"blob-pipe", after(func(w *world) { require.NoError(w, os.Remove(w.blob(content))); pipe(w, w.blob(content)) }), fault.Corrupt, "expected a regular file"},
		{"blobs-link", link(func(w *world) string { return filepath.Join(w.dir, "blobs") }), fault.Corrupt, "path escapes"},
		{"blobs-link-write", func(w *world) error {
			w.added("content")
			outside := filepath.Join(w.TempDir(), "outside")
			require.NoError(w, os.Rename(filepath.Join(w.dir, "blobs"), outside))
			require.NoError(w, os.Symlink(outside, filepath.Join(w.dir, "blobs")))
			ref, _ := w.publish("other", "other", "")
			err := w.add(ref)
			entries, readErr := os.ReadDir(filepath.Join(outside, "sha256"))
			require.NoError(w, readErr)
			require.Len(w, entries, 2, "changed outside the store")
			return err
		}, fault.User, "path escapes"},
		{"manifest-changed", func(w *world) error {
			w.spoil(w.blob(w.added("content")))
			return w.find("mine")
		}, fault.Corrupt, "content was changed"},
		{"lock-garbage", lock("hello"), fault.Corrupt, "invalid character"},
		{"lock-cut", lock(`{"version": 1, "recipes": {`), fault.Corrupt, "unexpected end"},
		{"lock-empty", lock(""), fault.Corrupt, "unexpected end"},
		{"lock-newer", lock(`{"version": 2, "what": {}}`), fault.Unsupported, "version 2: this program knows version 1"},
		{"lock-field", lock(`{"version": 1, "trusted": true}`), fault.Corrupt, "unknown field"},
		{"lock-null", after(func(w *world) {
			w.replace(filepath.Join(w.dir, store.LockFile), `{"version": 1, "recipes": null, "backends": null}`)
			w.added("again")
			w.replace(filepath.Join(w.dir, store.LockFile), `{"version": 1, "recipes": null}`)
		}), fault.Unsupported, `no recipe "mine"`},
		{"lock-key", lock(`{"version": 1, "recipes": {"mine": {"key": "MA=="}}}`), fault.Corrupt, "public key"},
		{"lock-name", lock(`{"version": 1, "recipes": {"../x": {}}}`), fault.Corrupt, `"../x" cannot be a name`},
		{"lock-digest-path", lock(`{"version": 1, "recipes": {"mine": {"digest": "sha256:../../x"}}}`), fault.Corrupt, "digest"},
		{"lock-huge", lock(strings.Repeat(" ", 5<<20)), fault.Corrupt, "at most 4194304"},
		{"lock-link", link(func(w *world) string { return filepath.Join(w.dir, store.LockFile) }), fault.Corrupt, "expected a regular file"},
		{"lock-digest-edited", func(w *world) error {
			edit(w.added("content").String(), module("else").String())(w)
			return w.find("mine")
		}, fault.Corrupt, "not found; adding it again repairs that"},
		{"lock-digest-swapped", func(w *world) error {
			ref, d := w.signed(me, "content")
			_, err := w.install(registry.Request{Ref: ref, Key: me.public})
			require.NoError(w, err)
			ref, evil := w.publish("evil", "evil", "")
			require.NoError(w, w.add(ref))
			edit(d.String(), evil.String())(w)
			return w.find("mine")
		}, fault.Corrupt, "the signature is of"},
		{"lock-signature-removed", func(w *world) error {
			ref, _ := w.signed(me, "content")
			_, err := w.install(registry.Request{Ref: ref, Key: me.public})
			require.NoError(w, err)
			path := filepath.Join(w.dir, store.LockFile)
			text, err := os.ReadFile(path)
			require.NoError(w, err)
			w.replace(path, regexp.MustCompile(`(?s),\s*"signature": {.*?}`).ReplaceAllString(string(text), ""))
			err = w.find("mine")
			require.NoError(w, w.registry().Uninstall(w.Context(), artifact.Recipe, "mine"), "it can be removed")
			require.Equal(w, fault.Unsupported, fault.KindOf(w.find("mine")))
			return err
		}, fault.Corrupt, "a key without a signature"},
		{"store-elsewhere", func(w *world) error {
			ref, _ := w.publish("mine", "content", "oci:"+w.layout+":1")
			w.dir = w.layout // has blobs too: they would be swept away
			err := w.add(ref)
			require.FileExists(w, w.blob(module("content")))
			require.NoFileExists(w, filepath.Join(w.dir, store.LockFile))
			return err
		}, fault.User, "is not empty: it is not a store"},
		{"store-not-writable", func(w *world) error {
			ref, _ := w.publish("mine", "content", "")
			w.dir = write(w.T, filepath.Join(w.TempDir(), "file"), "") // also refused to root, unlike a mode
			return w.add(ref)
		}, fault.User, "is not a folder"},
		{"store-read-only", func(w *world) error {
			if os.Getuid() == 0 {
				w.Skip("root may write anywhere")
			}
			ref, _ := w.publish("mine", "content", "")
			require.NoError(w, os.Mkdir(w.dir, 0o555))
			return w.add(ref)
		}, fault.User, "permission denied"},
		{"turn-pipe", func(w *world) error {
			require.NoError(w, os.Mkdir(w.dir, 0o755))
			pipe(w, filepath.Join(w.dir, ".turn"))
			return w.add(write(w.T, filepath.Join(w.TempDir(), "mine.wasm"), magic))
		}, fault.Corrupt, "expected a regular file"},
		{"turn-link", func(w *world) error {
			outside := filepath.Join(w.TempDir(), "outside")
			require.NoError(w, os.Mkdir(w.dir, 0o755))
			require.NoError(w, os.Symlink(outside, filepath.Join(w.dir, ".turn")))
			err := w.add(write(w.T, filepath.Join(w.TempDir(), "mine.wasm"), magic))
			require.NoFileExists(w, outside)
			return err
		}, fault.Corrupt, "expected a regular file"},
		{"store-busy", func(w *world) error {
			ref := write(w.T, filepath.Join(w.TempDir(), "mine.wasm"), magic) // does not look at the context
			require.NoError(w, os.Mkdir(w.dir, 0o755))
			other := flock.New(filepath.Join(w.dir, ".turn"))
			require.NoError(w, other.Lock())
			defer other.Unlock()
			ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := w.registry().Install(ctx, registry.Request{Kind: artifact.Recipe, Ref: ref})
			return err
		}, fault.Unknown, "waiting for another process"},
		{"program-link", func(w *world) error {
			require.NoError(w, w.addBackend(w.backend(func(*ocispec.Index) {})))
			b, err := w.registry().FindBackend("odd")
			require.NoError(w, err)
			require.NoError(w, os.Remove(b.Path))
			require.NoError(w, os.Symlink("/bin/sh", b.Path))
			_, err = w.registry().FindBackend("odd")
			return err
		}, fault.Corrupt, "expected a regular file"},
		{"program-unasked", func(w *world) error {
			_, err := w.install(registry.Request{Kind: artifact.Backend, Ref: w.backend(func(*ocispec.Index) {})})
			require.NoFileExists(w, w.dir)
			return err
		}, fault.User, "needs consent"},
	})
}
