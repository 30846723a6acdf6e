// Listing, verifying, choosing and retaining checkpoint folders. The worker reads and writes the
// tensors (worker/train/checkpoint/); proto/nsa/v1/checkpoint.proto defines the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/checkpoint.pb.h"

namespace nsa {

struct CheckpointEntry {
  int64_t step = 0;
  std::filesystem::path path;
};

// The file with the parameters.
inline constexpr char kModelFile[] = "model.safetensors";

// Retention never deletes a checkpoint whose folder has this file.
inline constexpr char kPinnedFile[] = "PINNED";

// Pins a checkpoint, or removes its pin; both survive a power loss, and to do it again changes
// nothing. NotFound when the folder does not exist, PermissionDenied when it may not be written.
absl::Status SetPinned(const std::filesystem::path& checkpoint, bool pinned);

// "step-00005000".
std::string CheckpointName(int64_t step);

// <out_dir>/checkpoints.
std::filesystem::path CheckpointsDir(const std::filesystem::path& out_dir);

// A folder with more checkpoints is not listed.
inline constexpr size_t kMostCheckpoints = 100'000;

// Published checkpoints, oldest first. Only exact names count: `step-00000100.backup` and
// `….tmp-3` are not checkpoints. The list is empty if there are none, or no checkpoints folder.
// ResourceExhausted if there are more than kMostCheckpoints; Cancelled if nobody needs the files of
// this thread's JobFileScope any more.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::filesystem::path& out_dir);

// The same for a folder that CheckpointsDir() returned.
absl::StatusOr<std::vector<CheckpointEntry>> CheckpointsIn(const std::filesystem::path& folder);

// The text of state.json: proto3 JSON with format_version and its own hash filled in.
absl::StatusOr<std::string> SerializeCheckpointState(v1::CheckpointState state);

// Reads state.json. DataLoss if it cannot be read or parsed, its own hash is wrong, or it is larger
// than limits::kManifestBytes;
// FailedPrecondition for another format_version.
absl::StatusOr<v1::CheckpointState> ReadCheckpointState(const std::filesystem::path& checkpoint);

// The same for the text of such a file; errors begin with `name`.
absl::StatusOr<v1::CheckpointState> ParseCheckpointState(const std::string& text,
                                                         const std::string& name);

// The same for a file of any name; errors begin with its name.
absl::StatusOr<v1::CheckpointState> ReadCheckpointStateFile(const std::filesystem::path& file);

// Whether a run validates after this step by its schedule: every eval_every steps and after the
// last step. A run that ends early, because it was asked to stop or its data ended, also validates
// at its end. It validates before it saves a checkpoint.
bool ValidatesAfter(const v1::TrainSpec& train, int64_t step);

// The loss of the validation at exactly this checkpoint's step; nothing if there was none. val_loss
// in state.json is that of the last validation, which may be of an earlier step.
std::optional<double> ValLossAt(const v1::CheckpointState& state);

// XXH3-128 of a file as 32 lower-case hexadecimal digits. `abandoned` is called for every MiB;
// Cancelled once it returns true.
absl::StatusOr<std::string> HashFile(const std::filesystem::path& path,
                                     const std::function<bool()>& abandoned = nullptr);

// Compares every file with state.json and returns the problems, e.g. "model.safetensors: hash 3f…
// (state.json says 9a…)"; empty if all files are good. A folder that cannot be read is also a
// problem. `abandoned` is called for every file and every MiB: once it returns true, nothing more
// is read and one problem says that the verification is incomplete.
std::vector<std::string> VerifyCheckpoint(const std::filesystem::path& checkpoint,
                                          const std::function<bool()>& abandoned = nullptr);

// The newest valid checkpoint of `out_dir`, and the problems of all newer ones (one line each,
// starting with the checkpoint's name). `found` is false only if `out_dir` has no checkpoint
// folder at all. If there are checkpoints but none is valid, the result is DataLoss (reason
// NO_VALID_CHECKPOINT), so that no job starts from step 0 unintentionally.
struct NewestGood {
  bool found = false;
  CheckpointEntry entry;
  std::vector<std::string> rejected;
};
absl::StatusOr<NewestGood> FindNewestGood(const std::filesystem::path& out_dir);

// The checkpoint that a user names: a checkpoint folder, perhaps through latest.ckpt, or an
// out_dir, whose newest valid one it is. NotFound if the path is neither; otherwise as
// FindNewestGood().
absl::StatusOr<NewestGood> FindNamed(const std::filesystem::path& path);

// The same without reading more than the names, so that the checkpoint may prove damaged. Nothing
// if the path is neither.
std::optional<std::filesystem::path> LookUpNamed(const std::filesystem::path& path);

// Whether retention keeps a checkpoint that has so many newer ones: it is one of the newest `keep`
// (at least 2), pinned, or the best.
bool RetentionKeeps(size_t newer, int keep, bool pinned, bool best);

// The checkpoints that retention may delete. `all` is oldest first.
std::vector<CheckpointEntry> PastRetention(const std::vector<CheckpointEntry>& all, int keep,
                                           int64_t best_step);

}  // namespace nsa
