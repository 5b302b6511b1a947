package artifact

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

func TestParse(t *testing.T) {
	t.Chdir(t.TempDir())
	dir, err := os.Getwd()
	require.NoError(t, err)
	digest := "sha256:" + strings.Repeat("0a", 32)
	for text, want := range map[string]string{
		"ghcr.io/x/y:1.2":           "ghcr.io/x/y:1.2",
		"ghcr.io/x/y@" + digest:     "ghcr.io/x/y@" + digest,
		"ghcr.io/x/y:1.2@" + digest: "ghcr.io/x/y@" + digest,
		"localhost:5000/y:latest":   "localhost:5000/y:latest",
		"[::1]:5000/y:latest":       "[::1]:5000/y:latest",
		"oci:layout:1.2":            "oci:" + dir + "/layout:1.2",
		"oci:./a:b/layout:1.2":      "oci:" + dir + "/a:b/layout:1.2",
		"oci:/layout@" + digest:     "oci:/layout@" + digest,
		"mine.wasm":                 dir + "/mine.wasm",
		"./mine":                    dir + "/mine",
		"/usr/lib/mine":             "/usr/lib/mine",
	} {
		ref, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, ref.String())
		again, err := Parse(ref.String())
		require.NoError(t, err, text)
		require.Equal(t, ref, again)
	}
	for text, say := range map[string]string{
		"":                       "missing registry or repository",
		"mine":                   "missing registry or repository",
		"x/y":                    "has no tag or digest",
		"ghcr.io/X/y:1":          "invalid repository",
		"ghcr.io/x/../y:1":       "invalid repository",
		"ghcr.io/x/y:" + "a b":   "invalid",
		"ghcr.io/x/y@sha256:12":  "invalid",
		"ghcr.io/x/y@md5:12":     "invalid",
		"oci:":                   "expected oci:FOLDER:TAG",
		"oci:layout":             "expected oci:FOLDER:TAG",
		"oci::1":                 "expected oci:FOLDER:TAG",
		"oci:layout:a/b":         "expected oci:FOLDER:TAG",
		"oci:layout@sha256:../x": "invalid",
	} {
		_, err := Parse(text)
		require.ErrorContains(t, err, say, text)
		require.Equal(t, fault.User, fault.KindOf(err), text)
	}
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1:80": true, "127.9.9.9": true, "[::1]:80": true, "::1": true,
		"example.com": false, "localhost.example.com": false, "127.0.0.1.example.com": false, "192.0.2.1:80": false, "": false, "0.0.0.0": false,
	} {
		require.Equal(t, want, loopback(host), host)
	}
}

func TestValidName(t *testing.T) {
	for _, name := range []string{"olmoe", "gpt-oss", "a", "A_1.2", "con2", "com10", "a-", strings.Repeat("a", 64)} {
		require.True(t, ValidName(name), name)
	}
	for _, name := range []string{"", ".", "..", "a/b", `a\b`, "-a", ".a", "a b", "a\x00", "a\n", "é", "CON", "nul", "com1", "lpt9.x", "a.", strings.Repeat("a", 65)} {
		require.False(t, ValidName(name), name)
	}
}

// Whatever a document says, it is read or refused.
func FuzzOpen(f *testing.F) {
	for _, kind := range []Kind{Recipe, Backend} {
		p, err := Pack(kind, "mine", map[string][]byte{map[Kind]string{Recipe: "", Backend: "linux/amd64"}[kind]: []byte("\x00asm")})
		require.NoError(f, err)
		f.Add(p.blobs[len(p.blobs)-1].Bytes, kind == Backend)
	}
	f.Add([]byte(`{"layers":[null],"manifests":[{"platform":null}]}`), false)
	f.Fuzz(func(t *testing.T, text []byte, backend bool) {
		kind := Recipe
		if backend {
			kind = Backend
		}
		p := &Packed{}
		a, err := Open(t.Context(), p, p.add("", text), kind, "linux/amd64")
		if err != nil {
			return
		}
		require.NoError(t, CheckDigest(a.File.Digest))
		require.LessOrEqual(t, a.File.Size, kind.MaxBytes())
		require.True(t, a.Name == "" || ValidName(a.Name))
	})
}
