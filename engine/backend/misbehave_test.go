package backend

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/futex"
	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Tokens that make the fake misbehave.
const (
	tokenUnsupported = 900 + iota
	tokenPanic
	tokenPanicThread
	tokenHang     // for ever, silently
	tokenWork     // for ever, with signs of life, deaf to cancelling
	tokenRoutes   // for ever, asking the host
	tokenChatter  // writes to standard error in several ways
	tokenBadRoute // picks experts of a bank that does not exist
	tokenExitWave // exits in the middle of a wave
	tokenHangWave // never answers after a wave
	tokenFlood    // writes 4 MiB to standard error
	tokenOrphan   // starts a process that keeps its standard error, and dies
	tokenForge    // this and those after it send forged messages
	tokenForgeTwice
	tokenForgeKind
	tokenForgeLength
	tokenForgePredict
)

func (s *fakeSequence) misbehave(token int32, host compute.Host) error {
	switch token {
	case tokenUnsupported:
		return fault.Unsupportedf("type %q", "Q9_9")
	case tokenPanic:
		panic("kernel exploded")
	case tokenPanicThread:
		go func() { panic("thread exploded") }()
		select {}
	case tokenHang:
		time.Sleep(time.Hour)
	case tokenWork:
		for {
			time.Sleep(20 * time.Millisecond)
			s.region.Progress()
		}
	case tokenRoutes:
		for {
			if _, err := host.Route(0, 1, []int32{0}, []float32{1}); err != nil {
				return err
			}
		}
	case tokenChatter:
		fmt.Fprintln(os.Stderr, "printed after the handshake")
		println("written to descriptor 2")
		println(`{"@level":"info","@message":"in JSON","@module":"kernels","cores":3}`)
	case tokenBadRoute:
		_, err := host.Route(77, 1, []int32{0}, []float32{1})
		return err
	case tokenExitWave, tokenHangWave:
		if _, err := host.Route(1, 1, []int32{0}, []float32{1}); err != nil {
			return err
		}
		if token == tokenExitWave {
			exit("a wave")
		}
		time.Sleep(time.Hour)
	case tokenFlood:
		line := append(bytes.Repeat([]byte("y"), 1<<16-1), '\n')
		for range 64 {
			_, _ = os.Stderr.Write(line)
		}
	case tokenOrphan:
		cmd := exec.Command("sleep", "100") // longer than hang
		cmd.Stderr, cmd.Stdout = os.Stderr, os.Stdout
		if err := cmd.Start(); err != nil {
			return err
		}
		exit("with a child")
	default:
		s.forge(token)
	}
	return nil
}

// forge writes to the mailbox, which begins the region, what compute.Serve never would.
func (s *fakeSequence) forge(token int32) {
	if token < tokenForge {
		return
	}
	box, err := mailbox.Open(s.region.Bytes)
	if err != nil {
		panic(err)
	}
	end := box.Backend()
	switch token {
	case tokenForge:
		end.Send(&mailbox.Message{Kind: mailbox.Route, Bank: 1, K: math.MaxUint32, Tokens: math.MaxUint32})
	case tokenForgeTwice:
		s.post(2)
	case tokenForgeKind:
		end.Send(&mailbox.Message{Kind: 99})
	case tokenForgeLength:
		s.region.Bytes[2560+43] = 0x7f // the bytes of a text, at 40
		s.post(1)
	case tokenForgePredict:
		end.Send(&mailbox.Message{Kind: mailbox.Predict, Bank: math.MaxUint32, K: 1, Tokens: 1})
	}
	time.Sleep(time.Hour)
}

// post says that n more messages are there.
func (s *fakeSequence) post(n uint32) {
	word := (*atomic.Uint32)(unsafe.Pointer(&s.region.Bytes[128]))
	word.Add(n)
	futex.Wake(word)
}

// trimHangs is a position that no trim comes back from.
const trimHangs = 60

func exit(where string) {
	println("gone in", where) // to descriptor 2: os.Stderr goes through the connection, which is about to end
	os.Exit(7)
}

// closeSockets closes every socket of the process, and sleeps.
func closeSockets() {
	for fd := compute.LifelineFD + 1; fd < 64; fd++ {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFSOCK {
			_ = syscall.Close(fd)
		}
	}
	time.Sleep(time.Hour)
}

// mute misbehaves when it is asked what it is.
type mute struct {
	fake
	role string
}

func (m mute) Describe() *compute.Description {
	switch m.role {
	case "describe exits":
		exit("describe")
	case "describe hangs":
		time.Sleep(time.Hour)
	}
	return &compute.Description{Name: strings.Repeat("z", 5<<20)}
}
