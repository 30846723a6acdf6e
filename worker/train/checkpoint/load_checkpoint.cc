#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/checkpoint/safetensors.h"
#include "worker/train/checkpoint/slices.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {
namespace {

constexpr auto kWidth = static_cast<int64_t>(sizeof(float));

absl::Status LoadParameters(const std::filesystem::path& path, const RestoreTarget& target) {
  NSA_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  const Slice wanted = target.weights.value_or(Slice{0, target.layout->size()});
  for (const ParameterInfo& tensor : target.layout->tensors()) {
    const auto found = file->tensors().find(tensor.name);
    if (found == file->tensors().end() || found->second.shape != tensor.shape) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: tensor %s is [%s] (the model's is [%s]); the checkpoint is of another model",
          kModelFile, tensor.name,
          found == file->tensors().end() ? "absent" : absl::StrJoin(found->second.shape, ", "),
          absl::StrJoin(tensor.shape, ", ")));
    }
    const Slice part = wanted.Common({tensor.offset, tensor.offset + tensor.size});
    if (part.empty()) continue;
    const std::span<float> to = target.parameters.subspan(
        static_cast<size_t>(part.begin - wanted.begin), static_cast<size_t>(part.size()));
    NSA_RETURN_IF_ERROR(file->ReadBytes(found->second, kWidth * (part.begin - tensor.offset),
                                        std::as_writable_bytes(to)));
  }
  if (file->tensors().size() != target.layout->tensors().size()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %d tensors (the model has %d); the checkpoint is of another model",
                        kModelFile, file->tensors().size(), target.layout->tensors().size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> NumberOf(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  int64_t number = 0;
  if (found == file.metadata().end() || !absl::SimpleAtoi(found->second, &number)) {
    return absl::DataLossError(absl::StrCat("no number '", key, "' in its metadata"));
  }
  return number;
}

// Reads elements of a shard's tensor; the shard begins at element `begin` of the moments.
absl::Status ReadPart(const SafetensorsFile& file, const char* name, const Slice& shard,
                      const Slice& part, std::span<float> to) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end() || found->second.size != shard.size()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("tensor %s has %d elements (its metadata says %d)", name,
                        found == file.tensors().end() ? 0 : found->second.size, shard.size()));
  }
  return file.ReadBytes(found->second, kWidth * (part.begin - shard.begin),
                        std::as_writable_bytes(to));
}

// Loads what the target wants of one shard, which must begin at element `loaded` of all `total`.
// Returns its end.
absl::StatusOr<int64_t> LoadShard(const std::filesystem::path& path, int64_t loaded, int64_t total,
                                  const RestoreTarget& target) {
  NSA_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  Slice shard;
  NSA_ASSIGN_OR_RETURN(shard.begin, NumberOf(*file, "begin"));
  NSA_ASSIGN_OR_RETURN(shard.end, NumberOf(*file, "end"));
  if (shard.begin != loaded || shard.end < shard.begin || shard.end > total) {
    return absl::FailedPreconditionError(
        absl::StrFormat("elements %d to %d (expected from %d, of %d in all)", shard.begin,
                        shard.end, loaded, total));
  }
  const Slice wanted = target.moments(), part = shard.Common(wanted);
  if (part.empty()) return shard.end;
  const auto at = static_cast<size_t>(part.begin - wanted.begin);
  const auto size = static_cast<size_t>(part.size());
  NSA_RETURN_IF_ERROR(
      ReadPart(*file, kFirstMoment, shard, part, target.first_moment.subspan(at, size)));
  NSA_RETURN_IF_ERROR(
      ReadPart(*file, kSecondMoment, shard, part, target.second_moment.subspan(at, size)));
  return shard.end;
}

absl::Status LoadMoments(const std::filesystem::path& checkpoint, int32_t world_size,
                         const RestoreTarget& target) {
  const int64_t total = target.slice.has_value() ? target.layout->size() : target.moments().size();
  int64_t loaded = 0;
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const std::string name = ShardName(rank, world_size);
    const absl::StatusOr<int64_t> next = LoadShard(checkpoint / name, loaded, total, target);
    if (!next.ok()) return Annotate(next.status(), name);
    loaded = *next;
  }
  if (loaded == total) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("optimizer shards: %d elements (the model has %d)", loaded, total));
}

}  // namespace

absl::StatusOr<v1::CheckpointState> LoadCheckpoint(const std::filesystem::path& checkpoint,
                                                   const std::string& job_hash,
                                                   const RestoreTarget& target) {
  const std::string name = checkpoint.filename().string();
  const std::vector<std::string> problems = VerifyCheckpoint(checkpoint);
  if (!problems.empty()) {
    return absl::DataLossError(
        absl::StrFormat("checkpoint %s: %s", name, absl::StrJoin(problems, "; ")));
  }
  NSA_ASSIGN_OR_RETURN(v1::CheckpointState state, ReadCheckpointState(checkpoint));
  if (!job_hash.empty() && state.job_hash() != job_hash) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "checkpoint %s: of a job with hash %s (this one has %s): model, nsa, data or train differ; "
        "undo the change, or start afresh in another train.out_dir",
        name, state.job_hash(), job_hash));
  }
  NSA_RETURN_IF_ERROR(Annotate(LoadParameters(checkpoint / kModelFile, target), name));
  if (!target.first_moment.empty() || target.slice.has_value()) {
    NSA_RETURN_IF_ERROR(Annotate(LoadMoments(checkpoint, state.world_size(), target), name));
  }
  return state;
}

}  // namespace nsa::train
