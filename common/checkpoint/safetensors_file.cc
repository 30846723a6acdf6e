#include "common/checkpoint/safetensors_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <limits>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/job_file.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr char kMetadata[] = "__metadata__";

constexpr std::array<std::string_view, 3> kTypeNames = {"F32", "BF16", "F16"};  // TensorType

std::string NameOf(TensorType type) { return std::string(kTypeNames[static_cast<size_t>(type)]); }

// The type that a header names, if it is one of `types`.
std::optional<TensorType> TypeOf(const nlohmann::json& entry, SafetensorsTypes types) {
  if (!entry.is_object() || !entry.contains("dtype")) return std::nullopt;
  for (const TensorType type : {TensorType::kF32, TensorType::kBf16, TensorType::kF16}) {
    if (types == SafetensorsTypes::kF32 && type != TensorType::kF32) continue;
    if (entry["dtype"] == NameOf(type)) return type;
  }
  return std::nullopt;
}

bool IsNumberList(const nlohmann::json& json) {
  return json.is_array() && std::all_of(json.begin(), json.end(),
                                        [](const auto& n) { return n.is_number_unsigned(); });
}

}  // namespace

bool ElementsOf(const std::vector<int64_t>& shape, int64_t* elements) {
  *elements = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(*elements, extent, elements)) return false;
  }
  return *elements <= std::numeric_limits<int64_t>::max() / 8;
}

std::string SafetensorsHeader(const std::vector<TensorHeader>& tensors, TensorType type,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header[kMetadata] = metadata;
  int64_t offset = 0;
  for (const TensorHeader& tensor : tensors) {
    const int64_t end = offset + tensor.size * BytesOf(type);
    header[tensor.name] = {
        {"dtype", NameOf(type)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(
    const std::filesystem::path& path, SafetensorsTypes types) {
  NSA_ASSIGN_OR_RETURN(Fd fd, OpenJobFile(path));
  auto file = std::unique_ptr<SafetensorsFile>(new SafetensorsFile(path, std::move(fd)));
  NSA_RETURN_IF_ERROR(file->ReadHeader(types));
  return file;
}

absl::Status SafetensorsFile::Damaged(const std::string& why) const {
  return absl::DataLossError(
      absl::StrCat(path_.filename().string(), ": not a safetensors file: ", why));
}

absl::Status SafetensorsFile::ReadAt(int64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t count = pread(fd_.get(), to.data(), to.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, path_.string());
    if (count == 0) return Damaged("it ends too early");
    offset += count;
    to = to.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::ReadHeader(SafetensorsTypes types) {
  struct stat info {};
  if (fstat(fd_.get(), &info) != 0) return absl::ErrnoToStatus(errno, path_.string());
  uint64_t length = 0;
  NSA_RETURN_IF_ERROR(ReadAt(0, std::as_writable_bytes(std::span(&length, 1))));
  if (length > limits::kTensorHeaderBytes || length + 8 > static_cast<uint64_t>(info.st_size)) {
    return Damaged(absl::StrFormat("a header of %d bytes", length));
  }
  std::string text(length, '\0');
  NSA_RETURN_IF_ERROR(ReadAt(8, std::as_writable_bytes(std::span(text))));
  const nlohmann::json header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Damaged("its header is not a JSON object");
  const auto data_begin = static_cast<int64_t>(8 + length);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      for (const auto& [key, entry] : value.items()) {
        if (entry.is_string()) metadata_[key] = entry.get<std::string>();
      }
      continue;
    }
    const std::optional<TensorType> type = TypeOf(value, types);
    const bool whole = type.has_value() && value.contains("shape") &&
                       IsNumberList(value["shape"]) && value.contains("data_offsets") &&
                       IsNumberList(value["data_offsets"]) && value["data_offsets"].size() == 2;
    if (!type.has_value() && value.is_object() && value.contains("dtype")) {
      return absl::DataLossError(
          absl::StrFormat("%s: tensor %s: type %s (must be %s)", path_.filename().string(), name,
                          CutText(value["dtype"].dump(), 40),
                          types == SafetensorsTypes::kF32 ? "F32" : "F32, BF16 or F16"));
    }
    if (!whole) return Damaged(absl::StrCat("tensor ", name));
    Tensor tensor;
    tensor.type = *type;
    tensor.shape = value["shape"].get<std::vector<int64_t>>();
    const auto begin = value["data_offsets"][0].get<int64_t>();
    const auto end = value["data_offsets"][1].get<int64_t>();
    if (!ElementsOf(tensor.shape, &tensor.size) || begin < 0 || end < begin ||
        end - begin != tensor.bytes()) {
      return Damaged(absl::StrFormat("tensor %s at bytes %d to %d", name, begin, end));
    }
    tensor.offset = data_begin + begin;
    tensors_.emplace(name, std::move(tensor));
  }
  return CheckOffsets(data_begin, info.st_size);
}

absl::Status SafetensorsFile::CheckOffsets(int64_t data_begin, int64_t file_bytes) const {
  std::vector<const Tensor*> in_order;
  for (const auto& [name, tensor] : tensors_) in_order.push_back(&tensor);
  std::sort(in_order.begin(), in_order.end(), [](const Tensor* a, const Tensor* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->size < b->size;
  });
  int64_t next = data_begin;
  for (const Tensor* tensor : in_order) {
    if (tensor->offset != next) return Damaged("tensors overlap or leave holes");
    if (tensor->bytes() > file_bytes - next) return Damaged("a tensor runs past its end");
    next += tensor->bytes();
  }
  return next == file_bytes ? absl::OkStatus() : Damaged("bytes behind the last tensor");
}

absl::Status SafetensorsFile::ReadBytes(const Tensor& tensor, int64_t begin,
                                        std::span<std::byte> to) const {
  if (begin < 0 || static_cast<int64_t>(to.size()) > tensor.bytes() - begin) {
    return absl::OutOfRangeError(absl::StrCat(path_.filename().string(), ": bytes ", begin, " to ",
                                              begin + static_cast<int64_t>(to.size()), " (",
                                              tensor.bytes(), " in the tensor)"));
  }
  return ReadAt(tensor.offset + begin, to);
}

}  // namespace nsa
