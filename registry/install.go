package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/cosign"
	"github.com/bigmoe/bigmoe/registry/store"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Request asks for something to be installed.
type Request struct {
	Kind artifact.Kind
	Ref  string // see [artifact.Parse]
	Name string // what it will be called here; "" = what its publisher calls it

	Key    *cosign.Key // it must be signed with; nil = with the key it was last installed with, if any
	Update bool        // take another digest than the pinned one

	// Consent decides about native code: an error declines, and so does its absence. It is not asked about a digest that
	// is pinned already.
	Consent func(Offer) error

	Access  artifact.Config
	Timeout time.Duration // for what comes before the consent, and again for the transfer after it; 0 = none
}

// Offer is what is about to be installed.
type Offer struct {
	Name   string
	Entry  store.Entry
	File   digest.Digest // of the module or program
	Bytes  int64         // its size
	Pinned bool          // the same digest is installed already
}

// Install puts a recipe or backend into the store and pins its digest. The lock file is the last thing written.
func (r *Registry) Install(ctx context.Context, req Request) (Offer, error) {
	ref, err := artifact.Parse(req.Ref)
	if err != nil {
		return Offer{}, err
	}
	offer, err := r.install(ctx, req, ref)
	if err != nil {
		return Offer{}, fmt.Errorf("%s %s: %w", req.Kind, ref, err)
	}
	return offer, nil
}

func (r *Registry) install(ctx context.Context, req Request, ref artifact.Ref) (offer Offer, err error) {
	var src *artifact.Source
	var a *artifact.Artifact
	err = within(ctx, req.Timeout, func(ctx context.Context) error {
		if src, err = artifact.Connect(ctx, ref, req.Kind, store.Platform, req.Access); err != nil {
			return err
		}
		offer.Entry.Source = ref.String()
		a, err = r.inspect(ctx, req, src, &offer)
		return err
	})
	if src != nil {
		defer src.Close()
	}
	if err != nil {
		return Offer{}, err
	}
	if req.Kind == artifact.Backend && !offer.Pinned {
		if req.Consent == nil {
			return Offer{}, fault.Userf("native code needs consent")
		}
		if err := req.Consent(offer); err != nil {
			return Offer{}, err
		}
	}
	var file []byte
	err = within(ctx, req.Timeout, func(ctx context.Context) error {
		file, err = artifact.Read(ctx, src, a.File, req.Kind.MaxBytes())
		return err
	})
	if err == nil {
		err = artifact.CheckFile(req.Kind, file)
	}
	if err != nil {
		return Offer{}, err
	}
	return offer, r.cfg.Store.Put(ctx, req.Kind, offer.Name, offer.Entry, a, file, req.Update)
}

// inspect reads all of an artifact but its file, and refuses what must not be installed.
func (r *Registry) inspect(ctx context.Context, req Request, src *artifact.Source, offer *Offer) (*artifact.Artifact, error) {
	a, err := artifact.Open(ctx, src, src.Root, req.Kind, store.Platform)
	if err != nil {
		return nil, err
	}
	offer.File, offer.Bytes = a.File.Digest, a.File.Size
	offer.Entry.Digest, offer.Entry.Key = src.Root.Digest, req.Key
	if offer.Name, err = r.freeName(req, a); err != nil {
		return nil, err
	}
	if err := r.compare(req, offer); err != nil || offer.Entry.Key == nil {
		return a, err
	}
	signatures, err := src.Signatures(ctx)
	if err != nil {
		return nil, err
	}
	signature, err := offer.Entry.Key.Find(src.Root.Digest.String(), signatures)
	offer.Entry.Signature = &signature
	return a, err
}

// freeName returns the name to install under. It is never one that is built in: that would do nothing or, worse, hide what
// people count on.
func (r *Registry) freeName(req Request, a *artifact.Artifact) (string, error) {
	name := req.Name
	if name == "" {
		name = a.Name
	}
	if !artifact.ValidName(name) {
		if req.Name == "" {
			return "", fault.Unsupportedf("its title %q cannot be the name of a %s: give one with --name", a.Title, req.Kind)
		}
		return "", fault.Userf("%q cannot be the name of a %s", name, req.Kind)
	}
	builtIn := false
	switch req.Kind {
	case artifact.Backend:
		_, builtIn = r.cfg.Backends[name]
	case artifact.Recipe:
		builtIn = r.cfg.Lookup != nil
		if builtIn {
			_, builtIn = r.cfg.Lookup(name)
		}
	}
	if builtIn {
		return "", fault.Userf("%s is built in, and built-in ones come first: give another name with --name", name)
	}
	return name, nil
}

// compare holds an offer against what is installed under its name.
func (r *Registry) compare(req Request, offer *Offer) error {
	entries, err := r.cfg.Store.Entries(req.Kind)
	if err != nil {
		return err
	}
	if offer.Entry.Key == nil {
		offer.Entry.Key = store.Key(entries, offer.Name, offer.Entry.Source)
	}
	offer.Pinned = entries[offer.Name].Digest == offer.Entry.Digest
	return store.Replace(entries, req.Kind, offer.Name, offer.Entry, req.Update)
}

// Uninstall removes a recipe or backend from the store.
func (r *Registry) Uninstall(ctx context.Context, kind artifact.Kind, name string) error {
	return r.cfg.Store.Remove(ctx, kind, name)
}

// Verify reads everything in the store and compares it with the digests in the lock file.
func (r *Registry) Verify(kind artifact.Kind) ([]store.Finding, error) {
	return r.cfg.Store.Verify(kind)
}

// within calls do with a context that ends after d, 0 = never.
func within(ctx context.Context, d time.Duration, do func(context.Context) error) error {
	if d == 0 {
		return do(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("it took longer than %v (--timeout)", d))
	defer cancel()
	err := do(ctx)
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return context.Cause(ctx)
	}
	return err
}
