#include "worker/train/checkpoint/write.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/checkpoint_dir.h"
#include "common/clock.h"
#include "common/durable_folder.h"
#include "common/status.h"
#include "worker/train/checkpoint/durable_file.h"
#include "worker/train/checkpoint/safetensors.h"
#include "worker/train/checkpoint/slices.h"

namespace nsa {
namespace {

constexpr char kTemporary[] = ".tmp-";

std::filesystem::path DoneFile(const std::filesystem::path& folder, const std::string& shard) {
  return folder / (shard + ".done");
}
std::filesystem::path FailedFile(const std::filesystem::path& folder, const std::string& shard) {
  return folder / (shard + ".failed");
}

// "<bytes> <hash>\n", with its final name only once it is whole.
absl::Status WriteDone(const std::filesystem::path& folder, const v1::CheckpointFile& shard) {
  const std::filesystem::path path = DoneFile(folder, shard.name());
  const std::filesystem::path temporary = path.string() + ".tmp";
  std::ofstream(temporary) << absl::StrFormat("%d %s\n", shard.bytes(), shard.xxh3_128());
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  return error ? absl::ErrnoToStatus(error.value(), path.string()) : absl::OkStatus();
}

std::optional<v1::CheckpointFile> ReadDone(const std::filesystem::path& folder,
                                           const std::string& shard) {
  std::ifstream file(DoneFile(folder, shard));
  v1::CheckpointFile result;
  int64_t bytes = 0;
  std::string hash;
  if (!(file >> bytes >> hash)) return std::nullopt;
  result.set_name(shard);
  result.set_bytes(bytes);
  result.set_xxh3_128(hash);
  return result;
}

absl::StatusOr<v1::CheckpointFile> AwaitShard(const WriterPlace& place,
                                              const std::filesystem::path& folder, int32_t rank,
                                              absl::Duration deadline,
                                              const std::atomic<bool>& abandoned) {
  const RealClock clock;
  const std::string shard = ShardName(rank, place.world_size);
  while (true) {
    if (auto done = ReadDone(folder, shard)) {
      std::error_code ignored;
      std::filesystem::remove(DoneFile(folder, shard), ignored);
      return *std::move(done);
    }
    std::error_code ignored;
    if (std::filesystem::exists(FailedFile(folder, shard), ignored)) {
      return absl::AbortedError(absl::StrFormat("rank %d could not write its shard", rank));
    }
    if (abandoned) {
      return absl::CancelledError(absl::StrFormat("the shard of rank %d was not there yet", rank));
    }
    if (clock.Monotonic() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrFormat("%s: not there after %s; is out_dir shared by all ranks?", shard,
                          absl::FormatDuration(place.shard_timeout)));
    }
    // Another process, perhaps on another machine, tells us by a file: there is nothing to wait on.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

absl::StatusOr<v1::CheckpointFile> WriteModel(const std::filesystem::path& folder,
                                              const Snapshot& snapshot) {
  std::vector<TensorToWrite> tensors;
  const std::span<const float> values(snapshot.parameters);
  for (const ParameterInfo& tensor : snapshot.layout->tensors()) {
    tensors.push_back({tensor.name, tensor.shape, values.subspan(tensor.offset, tensor.size)});
  }
  return WriteSafetensors(folder / kModelFile, tensors,
                          {{"format", "pt"}, {"step", absl::StrCat(snapshot.state.step())}});
}

absl::Status WriteState(const std::filesystem::path& folder, const v1::CheckpointState& state) {
  NSA_ASSIGN_OR_RETURN(const std::string text, SerializeCheckpointState(state));
  NSA_ASSIGN_OR_RETURN(const auto file, DurableFile::Create(folder / "state.json"));
  NSA_RETURN_IF_ERROR(file->Append(text));
  return file->Finish().status();
}

// The step of "step-00005000.tmp-3"; nothing for other names.
std::optional<int64_t> TemporaryStep(const std::string& name) {
  const size_t mark = name.find(kTemporary);
  int64_t step = 0;
  if (mark == std::string::npos || name.rfind("step-", 0) != 0 ||
      !absl::SimpleAtoi(name.substr(5, mark - 5), &step)) {
    return std::nullopt;
  }
  return step;
}

// The step of the lowest validation loss among `entries`; 0 when none has one.
int64_t BestStep(const std::vector<CheckpointEntry>& entries) {
  int64_t best_step = 0;
  double best_loss = 0;
  for (const CheckpointEntry& entry : entries) {
    const auto state = ReadCheckpointState(entry.path);
    if (!state.ok() || state->val_loss() <= 0) continue;
    if (best_step == 0 || state->val_loss() < best_loss) {
      best_step = entry.step;
      best_loss = state->val_loss();
    }
  }
  return best_step;
}

}  // namespace

std::filesystem::path TemporaryFolder(const WriterPlace& place, int64_t step) {
  return CheckpointsDir(place.out_dir) /
         absl::StrCat(CheckpointName(step), kTemporary, place.generation);
}

absl::StatusOr<v1::CheckpointFile> WriteShard(const WriterPlace& place, const Snapshot& snapshot) {
  const std::filesystem::path folder = TemporaryFolder(place, snapshot.state.step());
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  if (error) return absl::ErrnoToStatus(error.value(), folder.string());
  const std::string name = ShardName(place.rank, place.world_size);
  const Slice slice = SliceOf(snapshot.layout->size(), place.rank, place.world_size);
  absl::StatusOr<v1::CheckpointFile> shard =
      WriteSafetensors(folder / name,
                       {{kFirstMoment, {slice.size()}, snapshot.first_moment},
                        {kSecondMoment, {slice.size()}, snapshot.second_moment}},
                       {{"begin", absl::StrCat(slice.begin)},
                        {"end", absl::StrCat(slice.end)},
                        {"total", absl::StrCat(snapshot.layout->size())},
                        {"step", absl::StrCat(snapshot.state.step())}});
  if (place.rank == 0) return shard;
  absl::Status status = shard.status();
  if (status.ok()) status = WriteDone(folder, *shard);
  if (status.ok()) return shard;
  std::ofstream(FailedFile(folder, name)).flush();
  return status;
}

absl::StatusOr<int64_t> CompleteCheckpoint(const WriterPlace& place, const Snapshot& snapshot,
                                           v1::CheckpointFile own_shard,
                                           const std::atomic<bool>& abandoned) {
  const int64_t step = snapshot.state.step();
  const std::filesystem::path folder = TemporaryFolder(place, step);
  const std::filesystem::path final_folder = CheckpointsDir(place.out_dir) / CheckpointName(step);
  v1::CheckpointState state = snapshot.state;
  state.set_world_size(place.world_size);
  state.clear_files();
  NSA_ASSIGN_OR_RETURN(*state.add_files(), WriteModel(folder, snapshot));
  *state.add_files() = std::move(own_shard);
  const absl::Duration deadline = RealClock().Monotonic() + place.shard_timeout;
  for (int32_t rank = 1; rank < place.world_size; ++rank) {
    NSA_ASSIGN_OR_RETURN(*state.add_files(), AwaitShard(place, folder, rank, deadline, abandoned));
  }
  NSA_RETURN_IF_ERROR(WriteState(folder, state));
  std::error_code ignored;
  if (std::filesystem::exists(final_folder / "PINNED", ignored)) {  // replaced, so still pinned
    std::ofstream(folder / "PINNED").flush();
  }
  NSA_RETURN_IF_ERROR(SyncFolder(folder));
  NSA_RETURN_IF_ERROR(PublishFolder(folder, final_folder));
  NSA_RETURN_IF_ERROR(
      PointLink(CheckpointsDir(place.out_dir) / "latest.ckpt", CheckpointName(step)));
  int64_t bytes =
      static_cast<int64_t>(std::filesystem::file_size(final_folder / "state.json", ignored));
  for (const v1::CheckpointFile& file : state.files()) bytes += file.bytes();
  return bytes;
}

void RemoveTemporaryFolders(const std::filesystem::path& out_dir, int64_t before_step) {
  std::error_code error;
  std::vector<std::filesystem::path> stale;
  std::filesystem::directory_iterator it(CheckpointsDir(out_dir), error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const auto step = TemporaryStep(it->path().filename().string());
    if (step && *step < before_step) stale.push_back(it->path());
  }
  for (const std::filesystem::path& path : stale) std::filesystem::remove_all(path, error);
}

std::vector<std::string> ApplyRetention(const std::filesystem::path& out_dir, int32_t keep,
                                        int64_t step) {
  std::vector<std::string> problems;
  absl::StatusOr<std::vector<CheckpointEntry>> entries = ListCheckpoints(out_dir);
  if (!entries.ok()) return {std::string(entries.status().message())};
  entries->erase(std::remove_if(entries->begin(), entries->end(),
                                [&](const CheckpointEntry& entry) { return entry.step > step; }),
                 entries->end());
  std::vector<std::filesystem::path> nameless;
  for (const CheckpointEntry& entry : PastRetention(*entries, keep, BestStep(*entries))) {
    std::filesystem::path going = entry.path.string() + kTemporary + "deleted";
    std::error_code error;
    std::filesystem::rename(entry.path, going, error);
    if (error) {
      problems.push_back(absl::StrCat(entry.path.string(), ": ", error.message()));
    } else {
      nameless.push_back(std::move(going));
    }
  }
  if (nameless.empty()) return problems;
  // Else power loss could bring the name back without the files.
  if (const absl::Status synced = SyncFolder(CheckpointsDir(out_dir)); !synced.ok()) {
    problems.push_back(std::string(synced.message()));
    return problems;
  }
  for (const std::filesystem::path& going : nameless) {
    std::error_code error;
    std::filesystem::remove_all(going, error);
    if (error) problems.push_back(absl::StrCat(going.string(), ": ", error.message()));
  }
  return problems;
}

}  // namespace nsa
