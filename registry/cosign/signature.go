package cosign

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/json"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Where signatures are.
const (
	// MediaType is that of a payload.
	MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	// Annotation of a layer has the base64 of its signature.
	Annotation = "dev.cosignproject.cosign/signature"

	// payloadType is what tells a payload from other documents that the same key may have signed.
	payloadType = "cosign container image signature"
)

// Tag returns the tag that has the signatures of an artifact, given its digest ("sha256:…").
func Tag(digest string) string { return strings.Replace(digest, ":", "-", 1) + ".sig" }

// Signature is a signed payload.
type Signature struct {
	Payload []byte `json:"payload"`
	Value   []byte `json:"value"` // ASN.1, over the SHA-256 of the payload
}

type payload struct {
	Critical struct {
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
}

// Find returns the first signature that this key made of the artifact with that digest. When there is none the error
// ([fault.Corrupt]) says how it fails.
func (k *Key) Find(digest string, signatures []Signature) (Signature, error) {
	if len(signatures) == 0 {
		return Signature{}, fault.Corruptf("%s is not signed, expected a signature by key %s", digest, k.Fingerprint())
	}
	var last error
	for _, s := range signatures {
		err := k.Verify(digest, s)
		if err == nil {
			return s, nil
		}
		last = err
	}
	if len(signatures) == 1 {
		return Signature{}, last
	}
	return Signature{}, fault.Corruptf("none of %d signatures fits; the last: %w", len(signatures), last)
}

// Verify checks that this key signed the artifact with that digest.
func (k *Key) Verify(digest string, s Signature) error {
	sum := sha256.Sum256(s.Payload)
	if !ecdsa.VerifyASN1(k.public, sum[:], s.Value) {
		return fault.Corruptf("signature of %s is not by key %s, or was changed", digest, k.Fingerprint())
	}
	var p payload
	if err := json.Unmarshal(s.Payload, &p); err != nil {
		return fault.Corruptf("payload of the signature of %s: %w", digest, err)
	}
	if p.Critical.Type != payloadType {
		return fault.Corruptf("payload of the signature of %s: type %q, expected %q", digest, p.Critical.Type, payloadType)
	}
	if p.Critical.Image.Digest != digest {
		return fault.Corruptf("the signature is of %q, expected %s", p.Critical.Image.Digest, digest)
	}
	return nil
}
