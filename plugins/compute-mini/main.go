// Command compute-mini is a compute backend written from docs/backend.md, docs/plan.md, docs/ops.md and the two .proto
// files alone: it imports no package of bigmoe, so it shows what those pages leave to be guessed. Start it with
//
//	bigmoe run --backend bin/bigmoe-compute-mini -m model.gguf
//
// It has the ops of qwen3moe and the types F32, F16 and Q8_0, computes on one thread in plain Go, and is slow. Everything else
// is refused in Prepare.
package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// File descriptors that the engine hands over (docs/backend.md, Process).
const (
	regionFD   = 3
	lifelineFD = 4
)

func main() {
	folder := os.Getenv("PLUGIN_UNIX_SOCKET_DIR")
	if os.Getenv("BIGMOE_BACKEND") != "compute" {
		fmt.Fprintln(os.Stderr, "this is a backend: bigmoe starts it, with --backend")
		os.Exit(1)
	}
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	go func() {
		_, _ = os.NewFile(lifelineFD, "lifeline").Read(make([]byte, 1))
		_ = os.RemoveAll(folder)
		os.Exit(1)
	}()
	socket := filepath.Join(folder, "mini")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		die("%v", err)
	}
	s := &server{}
	g := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(s.handle), grpc.MaxRecvMsgSize(64<<20))
	fmt.Printf("1|1|unix|%s|grpc|\n", socket)
	if err := g.Serve(listener); err != nil {
		die("%v", err)
	}
}

// die ends a process that cannot go on, or whose engine broke the protocol.
func die(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "mini: "+format+"\n", args...)
	os.Exit(1)
}

// raw hands messages through as they are on the wire.
type raw struct{}

func (raw) Name() string                  { return "proto" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// server answers control calls, of which there is one at a time.
type server struct {
	region *region
	seq    *sequence
}

func (s *server) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	var reply []byte
	var err error
	switch name := strings.TrimPrefix(method, "/bigmoe.compute.v1.Control/"); name {
	case "Describe":
		reply = describe()
	case "Prepare":
		reply, err = prepare(request)
	case "Load":
		err = s.load(request)
	case "/plugin.GRPCController/Shutdown":
		os.Exit(0)
	default:
		return status.Errorf(codes.Unimplemented, "no method %s", method)
	}
	if err != nil {
		return status.Error(codeOf[kindOf(err)], err.Error())
	}
	return stream.SendMsg(&reply)
}

// describe is a Description.
func describe() (b []byte) {
	text := func(field protowire.Number, s string) {
		b = protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
	}
	number := func(field protowire.Number, n uint64) {
		b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
	}
	text(1, "mini")
	text(2, "1")
	text(3, "scalar")
	for _, kind := range slices.Sorted(maps.Keys(compilers)) {
		text(4, kind)
	}
	for _, typ := range slices.Sorted(maps.Keys(blocks)) {
		number(5, typ)
	}
	number(6, planSchema)
	number(7, 1)
	return b
}

// processBytes is what the Go runtime, gRPC and garbage not yet collected take.
const processBytes = 40 << 20

// prepare turns a Model into Needs.
func prepare(request []byte) (b []byte, err error) {
	m, err := newModel(request)
	if err != nil {
		return nil, err
	}
	for field, n := range []uint64{m.stateBytes(), m.scratchBytes(), processBytes} {
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(field+1), protowire.VarintType), n)
	}
	return b, nil
}

func (s *server) load(request []byte) error {
	if s.seq != nil && !s.seq.closed.Load() {
		return bugf("load: the sequence before has not been closed")
	}
	r, err := parse(request)
	if err != nil {
		return err
	}
	m, err := newModel(r.bytes(1))
	if err != nil {
		return err
	}
	if s.region == nil {
		if s.region, err = mapRegion(); err != nil {
			return err
		}
	}
	if !r.has(2) {
		return bugf("load: no layout")
	}
	fields, err := parse(r.bytes(2))
	if err != nil {
		return err
	}
	l, err := newLayout(fields, m, uint64(len(s.region.bytes)))
	if err != nil {
		return err
	}
	box, err := openMailbox(s.region, l.mailbox)
	if err != nil {
		return err
	}
	s.seq = newSequence(m, s.region, l, box)
	go s.seq.run()
	return nil
}
