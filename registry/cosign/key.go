package cosign

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Key is a public key. As text it is the base64 of its DER form: the PEM file without its frame.
type Key struct {
	public *ecdsa.PublicKey
	der    []byte
}

var (
	_ encoding.TextMarshaler   = (*Key)(nil)
	_ encoding.TextUnmarshaler = (*Key)(nil)
)

// ParseKey reads a PEM file such as cosign.pub.
func ParseKey(file []byte) (*Key, error) {
	block, _ := pem.Decode(file)
	switch {
	case block == nil:
		return nil, fault.Userf("public key: not a PEM file")
	case block.Type != "PUBLIC KEY":
		return nil, fault.Userf("public key: the PEM file has a %q, expected a PUBLIC KEY", block.Type)
	}
	return parseDER(block.Bytes)
}

func parseDER(der []byte) (*Key, error) {
	any, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fault.Userf("public key: %w", err)
	}
	public, ok := any.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, fault.Unsupportedf("public key: %T, expected ECDSA on the curve P-256", any)
	}
	return &Key{public, der}, nil
}

// Equal reports whether both are the same key.
func (k *Key) Equal(other *Key) bool { return k.public.Equal(other.public) }

// Fingerprint returns the start of the SHA-256 of the key, for people.
func (k *Key) Fingerprint() string {
	sum := sha256.Sum256(k.der)
	return hex.EncodeToString(sum[:8])
}

// MarshalText returns the key as one line.
func (k *Key) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, k.der), nil
}

// UnmarshalText reads what MarshalText wrote.
func (k *Key) UnmarshalText(text []byte) error {
	der, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		return fault.Corruptf("public key: %w", err)
	}
	parsed, err := parseDER(der)
	if err != nil {
		return err
	}
	*k = *parsed
	return nil
}
