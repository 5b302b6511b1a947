package recipe

// host answers a recipe's questions: the functions of docs/recipe-abi.md. Handles and indexes are what the host gave.
type host interface {
	metaFind(key string) int32 // -1: the file has no such key
	metaType(handle int32) int32
	metaLen(handle int32) int32
	metaInt(handle, index int32) int64
	metaFloat(handle, index int32) float64
	metaText(handle, index int32, buf []byte) int32

	tensorCount() int32
	tensorFind(name string) int32 // -1: the file has no such tensor
	tensorName(index int32, buf []byte) int32
	tensorDims(index int32) []uint64

	fail(kind int32, message string) // does not return
	warn(message string)
	plan(encoded []byte)
}

// abiVersion is the version of docs/recipe-abi.md that this package speaks.
const abiVersion = 2

// Kinds of failure, as [Builder.Refuse] takes them.
const (
	Corrupt     = 1 // the file contradicts itself
	Unsupported = 3 // the file is legal, but this recipe cannot describe it
	bug         = 4
)

type registration struct {
	name, version string
	build         func(*Builder)
}

var registered registration

// Register names the recipe and the function that writes its plan. It is called once, from an init function.
func Register(name, version string, build func(*Builder)) {
	registered = registration{name: name, version: version, build: build}
}

// text reads a text whose length is only known afterwards.
func text(read func(buf []byte) int32) string {
	buf := make([]byte, 128)
	n := read(buf)
	if int(n) > len(buf) {
		buf = make([]byte, n)
		read(buf)
	}
	return string(buf[:n])
}
