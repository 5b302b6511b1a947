package artifact

import (
	"cmp"
	"net"
	"net/http"
	"strings"
	"time"

	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Config says how registries are reached.
type Config struct {
	// DockerConfig is the path of docker's config.json, which may have credentials; "" = none. The file may be missing.
	DockerConfig string
	// PlainHTTP allows registries without TLS. Those on this machine are always reached without it.
	PlainHTTP bool
	// UserAgent is how the program introduces itself.
	UserAgent string
	// Transport is how connections are made, for example with certificates of one's own; nil = [http.DefaultTransport].
	Transport *http.Transport
}

// responseTimeout is how long a registry may take until it begins to answer. How long a transfer may take is up to the
// caller's context.
const responseTimeout = 30 * time.Second

func (c Config) repository(ref Ref) (*remote.Repository, error) {
	repository, err := remote.NewRepository(ref.remote.String())
	if err != nil {
		return nil, fault.As(fault.User, err)
	}
	transport := cmp.Or(c.Transport, http.DefaultTransport.(*http.Transport)).Clone()
	transport.ResponseHeaderTimeout = responseTimeout
	local := loopback(ref.remote.Registry)
	client := &auth.Client{
		Client: &http.Client{Transport: retry.NewTransport(guard{transport, c.PlainHTTP, local})},
		Header: http.Header{"User-Agent": {c.UserAgent}},
		Cache:  auth.NewCache(),
	}
	if c.DockerConfig != "" {
		store, err := credentials.NewStore(c.DockerConfig, credentials.StoreOptions{})
		if err != nil {
			return nil, fault.Userf("%s: %w", c.DockerConfig, err)
		}
		client.Credential = credentials.Credential(store)
	}
	repository.Client = client
	repository.PlainHTTP = c.PlainHTTP || local
	return repository, nil
}

// guard refuses requests without TLS where they were not asked for: a registry may redirect anywhere.
type guard struct {
	base  http.RoundTripper
	plain bool // allowed
	local bool // allowed to this machine
}

func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !g.plain && !(g.local && loopback(r.URL.Host)) {
		return nil, fault.Userf("refused to talk to %s without TLS: --plain-http allows it", r.URL.Host)
	}
	return g.base.RoundTrip(r)
}

// loopback reports whether host, which may have a port, is this machine.
func loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
