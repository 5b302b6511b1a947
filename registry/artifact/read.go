package artifact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Read returns the content that d describes: at most limit bytes, of the size and with the digest that d says.
func Read(ctx context.Context, from content.Fetcher, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if err := checkDescriptor(d, limit); err != nil {
		return nil, err
	}
	r, err := from.Fetch(ctx, d)
	if err != nil {
		return nil, refusal(fmt.Errorf("%s: %w", d.Digest, err))
	}
	defer r.Close()
	var b bytes.Buffer // grows as bytes come: the size is only a claim
	h := digest.SHA256.Digester()
	n, err := io.Copy(io.MultiWriter(&b, h.Hash()), io.LimitReader(r, d.Size+1))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) || err == nil && n < d.Size:
		return nil, fault.Corruptf("%s: ended after %d bytes, expected %d", d.Digest, n, d.Size)
	case err != nil:
		return nil, fmt.Errorf("%s: after %d of %d bytes: %w", d.Digest, n, d.Size, err)
	case n > d.Size:
		return nil, fault.Corruptf("%s: more than the %d bytes that were announced", d.Digest, d.Size)
	case h.Digest() != d.Digest:
		return nil, fault.Corruptf("content was changed: it is %s, expected %s", h.Digest(), d.Digest)
	}
	return b.Bytes(), nil
}

// checkDescriptor refuses what would not be read.
func checkDescriptor(d ocispec.Descriptor, limit int64) error {
	if err := CheckDigest(d.Digest); err != nil {
		return err
	}
	if d.Size < 0 || d.Size > limit {
		return fault.Unsupportedf("%s: %d bytes, expected at most %d", d.Digest, d.Size, limit)
	}
	return nil
}

// CheckDigest accepts SHA-256 only: one way to name content is enough.
func CheckDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fault.Corruptf("digest %q: %w", string(d), err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fault.Unsupportedf("digest %q: expected sha256", string(d))
	}
	return nil
}

// refusal gives a kind to what a registry or folder does not have, or does not give us.
func refusal(err error) error {
	var response *errcode.ErrorResponse
	if errors.Is(err, errdef.ErrNotFound) || errors.As(err, &response) && response.StatusCode/100 == 4 {
		return fault.As(fault.User, err)
	}
	return err
}
