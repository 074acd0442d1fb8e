// In place of XLA's header, which takes three seconds to compile: what the player uses of it.
// The driver calls below what is called by XLA, so that only types are needed here.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct XLA_FFI_Error;
struct XLA_FFI_CallFrame;

namespace xla::ffi {
enum class DataType { F32, F64, BF16, F16, S8, S16, S32, S64, U8, U16, U32, U64, C64, C128 };
enum class ErrorCode { kInternal };
struct Error {
  Error(ErrorCode, std::string) {}
};
template <typename T>
struct Span {
  T* at = nullptr;
  size_t length = 0;
  size_t size() const { return length; }
  T& operator[](size_t i) const { return at[i]; }
};
struct AnyBuffer {
  DataType element_type() const { return DataType::S32; }
  size_t size_bytes() const { return 0; }
  size_t element_count() const { return 0; }
  void* untyped_data() const { return nullptr; }
};
template <typename T>
struct Result : T {
  T* operator->() { return this; }
};
struct Promise {
  void SetAvailable() {}
  void SetError(const Error&) {}
};
struct Future {
  explicit Future(const Promise&) {}
};
}  // namespace xla::ffi

#define XLA_FFI_DEFINE_HANDLER_SYMBOL(name, function, binding) \
  XLA_FFI_Error* name(XLA_FFI_CallFrame*) { return nullptr; }
