#include "worker/train/checkpoint/safetensors.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/train/checkpoint/durable_file.h"

namespace nsa::train {

absl::StatusOr<v1::CheckpointFile> WriteSafetensors(
    const Folder& folder, const std::string& name, const std::vector<TensorToWrite>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::vector<TensorHeader> headers;
  for (const TensorToWrite& tensor : tensors) {
    int64_t elements = 0;
    if (!ElementsOf(tensor.shape, &elements) ||
        elements != static_cast<int64_t>(tensor.values.size())) {
      return absl::InternalError(
          absl::StrCat(tensor.name, ": its shape is not that of its values"));
    }
    headers.push_back({tensor.name, tensor.shape, elements});
  }
  NSA_ASSIGN_OR_RETURN(const auto file, DurableFile::Create(folder, name));
  NSA_RETURN_IF_ERROR(file->Append(SafetensorsHeader(headers, TensorType::kF32, metadata)));
  for (const TensorToWrite& tensor : tensors) {
    NSA_RETURN_IF_ERROR(file->Append(std::as_bytes(tensor.values)));
  }
  return file->Finish();
}

}  // namespace nsa::train
