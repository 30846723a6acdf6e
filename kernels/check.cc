#include "kernels/check.h"

#include "absl/strings/str_format.h"

namespace nsa {
namespace {

const char* NameOf(DType type) {
  switch (type) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status CheckTensor(std::string_view name, const ConstTensor& tensor, int64_t size,
                         DType dtype, std::string_view form) {
  if (tensor.size != size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d elements (must be %d = %s); pass all of it", View(name),
                        tensor.size, size, View(form)));
  }
  if (size > 0 && tensor.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: no memory (%d elements = %s); pass it", View(name), size, View(form)));
  }
  if (tensor.dtype != dtype) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: type %s (%s); convert it", View(name),
                                                      NameOf(tensor.dtype), NameOf(dtype)));
  }
  return absl::OkStatus();
}

absl::Status CheckOptional(std::string_view name, const ConstTensor& tensor, int64_t size,
                           DType dtype, std::string_view form) {
  if (!tensor.wanted() && tensor.size == 0) return absl::OkStatus();
  return CheckTensor(name, tensor, size, dtype, form);
}

absl::Status CheckFloating(std::string_view name, const ConstTensor& tensor) {
  if (tensor.dtype == DType::kF32 || tensor.dtype == DType::kBf16) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: type %s (f32 or bf16); convert it", View(name), NameOf(tensor.dtype)));
}

absl::Status CheckAtLeast(std::string_view name, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d (at least %d); correct the shape", View(name), value, least));
}

absl::Status CheckDocStart(const Exec& exec, const NsaShape& shape, const ConstTensor& doc_start) {
  if (!doc_start.wanted() && doc_start.size == 0) return absl::OkStatus();
  const int64_t rows = int64_t{1} * shape.batch * shape.seq_len;
  if (absl::Status status = CheckTensor("doc_start", doc_start, rows, DType::kI32, "B·S");
      !status.ok()) {
    return status;
  }
  if (exec.backend != Backend::kCpu) return absl::OkStatus();
  const auto* starts = static_cast<const int32_t*>(doc_start.data);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t t = row % shape.seq_len;
    if (starts[row] < 0 || starts[row] > t) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "doc_start[b=%d,t=%d]: %d (from 0 to t); give the first token of t's own document",
          row / shape.seq_len, t, starts[row]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBackend(const Exec& exec, std::string_view kernel, DType dtype) {
  if (exec.backend == Backend::kCuda) {
    if (dtype == DType::kBf16) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: type %s on CUDA (must be bf16); set runtime.precision: bf16",
                        View(kernel), NameOf(dtype)));
  }
  if (dtype != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: type %s on the CPU (must be f32); set runtime.precision: fp32",
                        View(kernel), NameOf(dtype)));
  }
  return absl::OkStatus();
}

}  // namespace nsa
