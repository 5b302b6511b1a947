package recipe

import "unsafe"

// imports is the host behind the module boundary.
type imports struct{}

//go:wasmimport bigmoe_v1 meta_find
func metaFind(key string) int32

//go:wasmimport bigmoe_v1 meta_type
func metaType(handle int32) int32

//go:wasmimport bigmoe_v1 meta_len
func metaLen(handle int32) int32

//go:wasmimport bigmoe_v1 meta_int
func metaInt(handle, index int32) int64

//go:wasmimport bigmoe_v1 meta_float
func metaFloat(handle, index int32) float64

//go:wasmimport bigmoe_v1 meta_text
func metaText(handle, index int32, buf unsafe.Pointer, capBytes int32) int32

//go:wasmimport bigmoe_v1 tensor_count
func tensorCount() int32

//go:wasmimport bigmoe_v1 tensor_find
func tensorFind(name string) int32

//go:wasmimport bigmoe_v1 tensor_name
func tensorName(index int32, buf unsafe.Pointer, capBytes int32) int32

//go:wasmimport bigmoe_v1 tensor_dims
func tensorDims(index int32, dims unsafe.Pointer) int32

//go:wasmimport bigmoe_v1 fail
func fail(kind int32, message string)

//go:wasmimport bigmoe_v1 warn
func warn(message string)

//go:wasmimport bigmoe_v1 plan
func plan(encoded unsafe.Pointer, sizeBytes int32)

func (imports) metaFind(key string) int32             { return metaFind(key) }
func (imports) metaType(handle int32) int32           { return metaType(handle) }
func (imports) metaLen(handle int32) int32            { return metaLen(handle) }
func (imports) metaInt(handle, index int32) int64     { return metaInt(handle, index) }
func (imports) metaFloat(handle, index int32) float64 { return metaFloat(handle, index) }
func (imports) metaText(handle, index int32, buf []byte) int32 {
	return metaText(handle, index, unsafe.Pointer(unsafe.SliceData(buf)), int32(len(buf)))
}
func (imports) tensorCount() int32           { return tensorCount() }
func (imports) tensorFind(name string) int32 { return tensorFind(name) }
func (imports) tensorName(index int32, buf []byte) int32 {
	return tensorName(index, unsafe.Pointer(unsafe.SliceData(buf)), int32(len(buf)))
}
func (imports) tensorDims(index int32) []uint64 {
	dims := new([4]uint64)
	n := tensorDims(index, unsafe.Pointer(dims))
	return dims[:n]
}
func (imports) fail(kind int32, message string) {
	fail(kind, message)
	panic("unreachable: the host ends a recipe that fails")
}
func (imports) warn(message string) { warn(message) }
func (imports) plan(encoded []byte) {
	plan(unsafe.Pointer(unsafe.SliceData(encoded)), int32(len(encoded)))
}

//go:wasmexport bigmoe_abi_version
func exportVersion() int32 { return abiVersion }

//go:wasmexport bigmoe_plan
func exportPlan() { run(imports{}, registered) }
