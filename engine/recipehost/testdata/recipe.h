// The recipe ABI of docs/recipe-abi.md for C. Nothing else is needed to write a recipe.
#include <stdint.h>

#define HOST(name) __attribute__((import_module("bigmoe_v1"), import_name(#name)))
#define EXPORT(name) __attribute__((export_name(#name)))

HOST(meta_find) int32_t meta_find(const char *key, int32_t size);
HOST(meta_type) int32_t meta_type(int32_t handle);
HOST(meta_len) int32_t meta_len(int32_t handle);
HOST(meta_int) int64_t meta_int(int32_t handle, int32_t index);
HOST(meta_float) double meta_float(int32_t handle, int32_t index);
HOST(meta_text) int32_t meta_text(int32_t handle, int32_t index, char *buf, int32_t cap);
HOST(tensor_count) int32_t tensor_count(void);
HOST(tensor_find) int32_t tensor_find(const char *name, int32_t size);
HOST(tensor_name) int32_t tensor_name(int32_t index, char *buf, int32_t cap);
HOST(tensor_type) int32_t tensor_type(int32_t index);
HOST(tensor_dims) int32_t tensor_dims(int32_t index, uint64_t dims[4]);
HOST(fail) _Noreturn void fail(int32_t kind, const char *message, int32_t size);
HOST(warn) void warn(const char *message, int32_t size);
HOST(plan) void plan(const void *bytes, int32_t size);

#ifndef VERSION
#define VERSION 2
#endif

EXPORT(bigmoe_abi_version) int32_t bigmoe_abi_version(void) { return VERSION; }
