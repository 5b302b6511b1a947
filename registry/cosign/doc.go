// Package cosign checks signatures that cosign makes with a key pair.
//
//	key, err := cosign.ParseKey(pem) // cosign.pub
//	signature, err := key.Find(digest, signatures)
//
// What is signed is a small JSON document, the payload ("simple signing"), that names the digest of an artifact. A registry
// has the signatures of an artifact under a tag made from its digest: one layer for each, whose content is the payload
// and whose annotation is the signature.
//
// # Caveats
//
// Keys are ECDSA on P-256, which is what cosign generate-key-pair makes. Certificates, transparency logs and the bundles
// of cosign 3 are not looked at: a key that a person gave is the only thing trusted. Specification:
// https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md
//
// # Concurrency
//
// Everything here is safe for concurrent use.
package cosign
