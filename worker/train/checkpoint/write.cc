#include "worker/train/checkpoint/write.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "worker/train/checkpoint/durable_file.h"
#include "worker/train/checkpoint/model_file.h"
#include "worker/train/checkpoint/safetensors.h"
#include "worker/train/checkpoint/slices.h"

namespace nsa::train {
namespace {

constexpr char kTemporary[] = ".tmp-";

std::string DoneFile(const std::string& shard) { return shard + ".done"; }
std::string FailedFile(const std::string& shard) { return shard + ".failed"; }

// Writes a new file without fsync.
absl::Status WriteSmallFile(const Folder& folder, const std::string& name,
                            const std::string& content) {
  NSA_ASSIGN_OR_RETURN(const Fd fd, folder.Create(name));
  const ssize_t written = write(fd.get(), content.data(), content.size());
  if (written == static_cast<ssize_t>(content.size())) return absl::OkStatus();
  return absl::ErrnoToStatus(written < 0 ? errno : ENOSPC, name);
}

// What a rank other than 0 has written.
struct RankFiles {
  v1::CheckpointFile moments;
  v1::CheckpointFile weights;
};

// Writes "<bytes> <hash>\n" of the moments and of the weights, under a temporary name, and then
// renames the file.
absl::Status WriteDone(const Folder& folder, const RankFiles& files) {
  const std::string name = DoneFile(files.moments.name());
  NSA_RETURN_IF_ERROR(WriteSmallFile(
      folder, name + ".tmp",
      absl::StrFormat("%d %s\n%d %s\n", files.moments.bytes(), files.moments.xxh3_128(),
                      files.weights.bytes(), files.weights.xxh3_128())));
  return folder.Rename(name + ".tmp", name);
}

// Reads a rank's done file; nullopt while there is none.
absl::StatusOr<std::optional<RankFiles>> ReadDone(const WriterPlace& place, const Folder& folder,
                                                  int32_t rank) {
  const std::string shard = ShardName(rank, place.world_size);
  const absl::StatusOr<std::string> text = folder.Read(DoneFile(shard));
  if (absl::IsNotFound(text.status())) return std::nullopt;
  NSA_RETURN_IF_ERROR(text.status());
  std::istringstream words(*text);
  RankFiles files;
  files.moments.set_name(shard);
  files.weights.set_name(WeightsName(rank, place.world_size));
  for (v1::CheckpointFile* const file : {&files.moments, &files.weights}) {
    int64_t bytes = 0;
    std::string hash;
    if (!(words >> bytes >> hash)) return std::nullopt;
    file->set_bytes(bytes);
    file->set_xxh3_128(hash);
  }
  return files;
}

absl::StatusOr<RankFiles> AwaitShard(const WriterPlace& place, const Folder& folder, int32_t rank,
                                     absl::Duration deadline, const std::atomic<bool>& abandoned) {
  const RealClock clock;
  const std::string shard = ShardName(rank, place.world_size);
  while (true) {
    NSA_ASSIGN_OR_RETURN(std::optional<RankFiles> done, ReadDone(place, folder, rank));
    if (done) {
      folder.RemoveAll(DoneFile(shard)).IgnoreError();
      return *std::move(done);
    }
    if (folder.Has(FailedFile(shard))) {
      return absl::AbortedError(absl::StrFormat("rank %d could not write its shard", rank));
    }
    if (abandoned) {
      return absl::CancelledError(absl::StrFormat("the shard of rank %d was not there yet", rank));
    }
    // A rank that arrives later would write into the replacement of this folder.
    NSA_RETURN_IF_ERROR(folder.CheckInPlace());
    if (clock.Monotonic() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrFormat("%s: not there after %s; is out_dir shared by all ranks?", shard,
                          absl::FormatDuration(place.shard_timeout)));
    }
    // Polls: a file written by another process, maybe on another machine, cannot be waited for.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Writes this rank's slice of the moments.
absl::StatusOr<v1::CheckpointFile> WriteSlice(const Folder& folder, const std::string& name,
                                              const HostSnapshot& snapshot) {
  const Slice& slice = snapshot.slice;
  return WriteSafetensors(folder, name,
                          {{kFirstMoment, {slice.size()}, snapshot.first_moment},
                           {kSecondMoment, {slice.size()}, snapshot.second_moment}},
                          {{"begin", absl::StrCat(slice.begin)},
                           {"end", absl::StrCat(slice.end)},
                           {"total", absl::StrCat(snapshot.layout->size())},
                           {"step", absl::StrCat(snapshot.state.step())}});
}

// Writes this rank's slice of the weights, for rank 0, and says that both of its files are
// complete.
absl::Status HandOver(const WriterPlace& place, const Folder& folder, const HostSnapshot& snapshot,
                      const v1::CheckpointFile& moments) {
  NSA_ASSIGN_OR_RETURN(const auto file,
                       DurableFile::Create(folder, WeightsName(place.rank, place.world_size)));
  NSA_RETURN_IF_ERROR(file->Append(std::as_bytes(snapshot.parameters)));
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointFile weights, file->Finish());
  return WriteDone(folder, {moments, weights});
}

absl::StatusOr<v1::CheckpointFile> WriteState(const Folder& folder,
                                              const v1::CheckpointState& state) {
  NSA_ASSIGN_OR_RETURN(const std::string text, SerializeCheckpointState(state));
  NSA_ASSIGN_OR_RETURN(const auto file, DurableFile::Create(folder, "state.json"));
  NSA_RETURN_IF_ERROR(file->Append(text));
  return file->Finish();
}

// The step of "step-00005000.tmp-3"; nullopt for other names.
std::optional<int64_t> TemporaryStep(const std::string& name) {
  const size_t mark = name.find(kTemporary);
  int64_t step = 0;
  if (mark == std::string::npos || name.rfind("step-", 0) != 0 ||
      !absl::SimpleAtoi(name.substr(5, mark - 5), &step)) {
    return std::nullopt;
  }
  return step;
}

// The step of the entry with the lowest validation loss, among those that were validated at their
// own step; 0 when there is none.
int64_t BestStep(const std::vector<CheckpointEntry>& entries) {
  int64_t best_step = 0;
  double best_loss = 0;
  for (const CheckpointEntry& entry : entries) {
    const auto state = ReadCheckpointState(entry.path);
    const std::optional<double> loss = state.ok() ? ValLossAt(*state) : std::nullopt;
    if (loss.has_value() && (best_step == 0 || *loss < best_loss)) {
      best_step = entry.step;
      best_loss = *loss;
    }
  }
  return best_step;
}

// Takes the newest `most` of those that may not be deleted from `past`, which is oldest first.
void LeaveNewest(int32_t most, const std::function<bool(int64_t step)>& may_delete,
                 std::vector<CheckpointEntry>* past) {
  for (auto it = past->end(); it != past->begin() && most > 0;) {
    if (may_delete((--it)->step)) continue;
    it = past->erase(it);
    --most;
  }
}

}  // namespace

std::string TemporaryName(const WriterPlace& place, const HostSnapshot& snapshot) {
  return absl::StrCat(CheckpointName(snapshot.state.step()), kTemporary, place.generation,
                      snapshot.attempt > 1 ? absl::StrCat("-", snapshot.attempt) : "");
}

absl::StatusOr<v1::CheckpointFile> WriteShard(const WriterPlace& place, const Folder& temporary,
                                              const HostSnapshot& snapshot) {
  const std::string name = ShardName(place.rank, place.world_size);
  const absl::Status in_place = place.checkpoints.CheckInPlace();
  const absl::StatusOr<v1::CheckpointFile> shard =
      in_place.ok() ? WriteSlice(temporary, name, snapshot) : in_place;
  if (place.rank == 0) return shard;
  const absl::Status status =
      shard.ok() ? HandOver(place, temporary, snapshot, *shard) : shard.status();
  if (status.ok()) return shard;
  WriteSmallFile(temporary, FailedFile(name), "").IgnoreError();  // `status` says what is wrong
  return status;
}

absl::StatusOr<int64_t> CompleteCheckpoint(const WriterPlace& place, const Folder& temporary,
                                           const HostSnapshot& snapshot,
                                           v1::CheckpointFile own_shard,
                                           const std::atomic<bool>& abandoned) {
  const std::string name = CheckpointName(snapshot.state.step());
  v1::CheckpointState state = snapshot.state;
  state.set_world_size(place.world_size);
  state.clear_files();
  // In state.json the model's file comes first.
  v1::CheckpointFile* const model_file = state.add_files();
  *state.add_files() = std::move(own_shard);
  NSA_ASSIGN_OR_RETURN(const auto model,
                       ModelFile::Create(temporary, *snapshot.layout, state.step()));
  NSA_RETURN_IF_ERROR(model->Append(snapshot.parameters));
  const absl::Duration deadline = RealClock().Monotonic() + place.shard_timeout;
  for (int32_t rank = 1; rank < place.world_size; ++rank) {
    NSA_ASSIGN_OR_RETURN(RankFiles files, AwaitShard(place, temporary, rank, deadline, abandoned));
    NSA_RETURN_IF_ERROR(model->TakeOver(temporary, files.weights));
    *state.add_files() = std::move(files.moments);
  }
  NSA_ASSIGN_OR_RETURN(*model_file, model->Finish());
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointFile state_file, WriteState(temporary, state));
  if (place.checkpoints.Has(name + "/PINNED")) {  // the new one replaces a pinned one: pin it, too
    NSA_RETURN_IF_ERROR(WriteSmallFile(temporary, kPinnedFile, ""));
  }
  NSA_RETURN_IF_ERROR(temporary.Sync());
  NSA_RETURN_IF_ERROR(temporary.CheckInPlace());  // publish the folder that was written
  NSA_RETURN_IF_ERROR(place.checkpoints.Publish(TemporaryName(place, snapshot), name));
  NSA_RETURN_IF_ERROR(place.checkpoints.PointLink("latest.ckpt", name));
  int64_t bytes = state_file.bytes();
  for (const v1::CheckpointFile& file : state.files()) bytes += file.bytes();
  return bytes;
}

void RemoveTemporaryFolders(const Folder& checkpoints, int64_t before_step) {
  const absl::StatusOr<std::vector<std::string>> names = checkpoints.Names();
  if (!names.ok()) return;  // not an error: they only take space
  for (const std::string& name : *names) {
    const auto step = TemporaryStep(name);
    if (step && *step < before_step) checkpoints.RemoveAll(name).IgnoreError();
  }
}

std::vector<std::string> ApplyRetention(const Folder& checkpoints, int32_t keep, int64_t step,
                                        const std::string& job_id,
                                        const std::function<bool(int64_t step)>& may_delete) {
  std::vector<std::string> problems;
  absl::StatusOr<std::vector<CheckpointEntry>> entries = CheckpointsIn(checkpoints.fixed_path());
  if (!entries.ok()) return {std::string(entries.status().message())};
  std::erase_if(*entries, [&](const CheckpointEntry& entry) {
    if (entry.step > step) return true;
    const auto state = ReadCheckpointState(entry.path);
    return !state.ok() || state->job_id() != job_id;
  });
  const auto note = [&](const absl::Status& status) {
    if (!status.ok()) problems.emplace_back(status.message());
    return status.ok();
  };
  std::vector<CheckpointEntry> past = PastRetention(*entries, keep, BestStep(*entries));
  if (may_delete) LeaveNewest(keep, may_delete, &past);
  std::vector<std::string> nameless;
  for (const CheckpointEntry& entry : past) {
    const std::string name = CheckpointName(entry.step);
    const std::string going = absl::StrCat(name, kTemporary, "deleted");
    if (note(checkpoints.Rename(name, going))) nameless.push_back(going);
  }
  // Without this, the final name could come back after a power loss, without its files.
  if (nameless.empty() || !note(checkpoints.Sync())) return problems;
  for (const std::string& going : nameless) note(checkpoints.RemoveAll(going));
  return problems;
}

}  // namespace nsa::train
