#include "worker/train/checkpoint/model_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/content_hash.h"
#include "common/checkpoint/safetensors_file.h"
#include "worker/train/model/slice.h"

namespace nsa::train {
namespace {

constexpr int64_t kPieceFloats = 1 << 20;

// Fills `to` from the file's current place on.
absl::Status ReadNext(const Fd& file, const std::string& name, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t count = read(file.get(), to.data(), to.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, name);
    if (count == 0) return absl::DataLossError(absl::StrCat(name, ": it ends too early"));
    to = to.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFile>> ModelFile::Create(const Folder& folder,
                                                             const ParameterLayout& layout,
                                                             int64_t step) {
  std::vector<TensorHeader> headers;
  for (const ParameterInfo& tensor : layout.tensors()) {
    headers.push_back({tensor.name, tensor.shape, tensor.size});
  }
  NSA_ASSIGN_OR_RETURN(auto file, DurableFile::Create(folder, kModelFile));
  NSA_RETURN_IF_ERROR(file->Append(SafetensorsHeader(
      headers, TensorType::kF32, {{"format", "pt"}, {"step", absl::StrCat(step)}})));
  return std::unique_ptr<ModelFile>(new ModelFile(layout, std::move(file)));
}

absl::Status ModelFile::Append(std::span<const float> values) {
  const Slice given = {end_, end_ + static_cast<int64_t>(values.size())};
  end_ = given.end;
  const std::span<const ParameterInfo> tensors = layout_.tensors();
  for (; complete_ < tensors.size(); ++complete_) {
    const ParameterInfo& tensor = tensors[complete_];
    const Slice whole = {tensor.offset, tensor.offset + tensor.size};
    const Slice part = given.Common(whole);
    if (!part.empty()) {
      NSA_RETURN_IF_ERROR(file_->Append(std::as_bytes(values.subspan(
          static_cast<size_t>(part.begin - given.begin), static_cast<size_t>(part.size())))));
    }
    if (whole.end > given.end) break;
  }
  return absl::OkStatus();
}

absl::Status ModelFile::TakeOver(const Folder& folder, const v1::CheckpointFile& part) {
  NSA_ASSIGN_OR_RETURN(const Fd file, folder.Open(part.name(), O_RDONLY));
  ContentHash hash;
  std::vector<float> buffer(kPieceFloats);
  for (auto left = part.bytes() / int64_t{sizeof(float)}; left > 0;) {
    const int64_t floats = std::min(left, kPieceFloats);
    const std::span<float> piece = std::span(buffer).first(static_cast<size_t>(floats));
    NSA_RETURN_IF_ERROR(ReadNext(file, part.name(), std::as_writable_bytes(piece)));
    hash.Add(std::as_bytes(piece));
    NSA_RETURN_IF_ERROR(Append(piece));
    left -= floats;
  }
  if (hash.Hex() != part.xxh3_128()) {
    return absl::DataLossError(absl::StrFormat("%s: hash %s (the rank that wrote it says %s)",
                                               part.name(), hash.Hex(), part.xxh3_128()));
  }
  return folder.RemoveAll(part.name());
}

absl::StatusOr<v1::CheckpointFile> ModelFile::Finish() {
  if (end_ != layout_.size()) {
    return absl::InternalError(absl::StrFormat("%s: weights of %d elements (the model has %d)",
                                               kModelFile, end_, layout_.size()));
  }
  return file_->Finish();
}

}  // namespace nsa::train
