#include "worker/train/checkpoint/safetensors.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "worker/train/checkpoint/durable_file.h"

namespace nsa::train {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr char kMetadata[] = "__metadata__";

std::string HeaderOf(const std::vector<TensorToWrite>& tensors,
                     const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header[kMetadata] = metadata;
  uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const uint64_t end = offset + tensor.values.size_bytes();
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

absl::StatusOr<v1::CheckpointFile> WriteSafetensors(
    const Folder& folder, const std::string& name, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata) {
  for (const TensorToWrite& tensor : tensors) {
    int64_t elements = 0;
    if (!ElementsOf(tensor.shape, &elements) ||
        elements != static_cast<int64_t>(tensor.values.size())) {
      return absl::InternalError(
          absl::StrCat(tensor.name, ": its shape is not that of its values"));
    }
  }
  NSA_ASSIGN_OR_RETURN(const auto file, DurableFile::Create(folder, name));
  const std::string header = HeaderOf(tensors, metadata);
  const uint64_t length = header.size();
  NSA_RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(&length, 1))));
  NSA_RETURN_IF_ERROR(file->Append(header));
  for (const TensorToWrite& tensor : tensors) {
    NSA_RETURN_IF_ERROR(file->Append(std::as_bytes(tensor.values)));
  }
  return file->Finish();
}

}  // namespace nsa::train
