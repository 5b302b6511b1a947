package cosign_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/registry/cosign"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

func public(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestKey(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	key, err := cosign.ParseKey(public(t, &private.PublicKey))
	require.NoError(t, err)
	text, err := key.MarshalText()
	require.NoError(t, err)
	var again cosign.Key
	require.NoError(t, again.UnmarshalText(text))
	require.True(t, key.Equal(&again))
	require.Equal(t, key.Fingerprint(), again.Fingerprint())
	require.Error(t, again.UnmarshalText([]byte("!")))
	require.Error(t, again.UnmarshalText(text[4:]))
}

func TestParseKeyRefuses(t *testing.T) {
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		file []byte
		kind fault.Kind
		say  string
	}{
		{"empty", nil, fault.User, "not a PEM file"},
		{"private", pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY"}), fault.User, "expected a PUBLIC KEY"},
		{"garbage", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}), fault.User, "public key"},
		{"curve", public(t, &p384.PublicKey), fault.Unsupported, "expected ECDSA on the curve P-256"},
		{"ed25519", public(t, ed), fault.Unsupported, "ed25519.PublicKey, expected ECDSA"},
	} {
		_, err := cosign.ParseKey(c.file)
		require.ErrorContains(t, err, c.say, c.name)
		require.Equal(t, c.kind, fault.KindOf(err), c.name)
	}
}

func TestTag(t *testing.T) {
	require.Equal(t, "sha256-97fc222c.sig", cosign.Tag("sha256:97fc222c"))
}
