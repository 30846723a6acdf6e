// Checkpoint folders as everybody sees them: listing, verifying, choosing, keeping. The tensors are
// the worker's affair (worker/train/checkpoint.h); the format is proto/nsa/v1/checkpoint.proto.
#pragma once

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

// A checkpoint whose folder has this file is kept by retention.
inline constexpr char kPinnedFile[] = "PINNED";

// "step-00005000".
std::string CheckpointName(int64_t step);

// <out_dir>/checkpoints.
std::filesystem::path CheckpointsDir(const std::filesystem::path& out_dir);

// Published checkpoints, oldest first. Only exact names count: `step-00000100.backup` and
// `….tmp-3` are not checkpoints. An out_dir without any gives an empty list.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::filesystem::path& out_dir);

// The same for the folder that CheckpointsDir() names.
absl::StatusOr<std::vector<CheckpointEntry>> CheckpointsIn(const std::filesystem::path& folder);

// The text of state.json: proto3 JSON with format_version and its own hash filled in.
absl::StatusOr<std::string> SerializeCheckpointState(v1::CheckpointState state);

// Reads state.json; DataLoss when it is not one or its own hash is wrong, FailedPrecondition for a
// newer format_version.
absl::StatusOr<v1::CheckpointState> ReadCheckpointState(const std::filesystem::path& checkpoint);

// Whether a run validates after this step, before it saves: every eval_every steps, and after the
// last.
bool ValidatesAfter(const v1::TrainSpec& train, int64_t step);

// The loss of the validation that was made at this very checkpoint's step; nothing when there was
// none. state.json carries the last validation's loss, which may be that of an earlier step.
std::optional<double> ValLossAt(const v1::CheckpointState& state);

// XXH3-128 of a file as 32 lower-case hexadecimal digits. Cancelled once `abandoned` says so, which
// is asked for every MiB.
absl::StatusOr<std::string> HashFile(const std::filesystem::path& path,
                                     const std::function<bool()>& abandoned = nullptr);

// Compares every file with state.json: "model.safetensors: hash 3f… (state.json says 9a…)". Empty
// when all are good. Never an error: a folder that cannot be read is a problem too. `abandoned` is
// asked all the time: once it says so nothing more is read, and the rest is one problem.
std::vector<std::string> VerifyCheckpoint(const std::filesystem::path& checkpoint,
                                          const std::function<bool()>& abandoned = nullptr);

// The newest checkpoint of `out_dir` that verifies, and the problems of every newer one that did
// not (one line each, starting with the checkpoint's name). `found` is false only when there is no
// checkpoint folder at all; when there are some but none is good the result is DataLoss (reason
// NO_VALID_CHECKPOINT), so that nobody starts from step 0 unasked.
struct NewestGood {
  bool found = false;
  CheckpointEntry entry;
  std::vector<std::string> rejected;
};
absl::StatusOr<NewestGood> FindNewestGood(const std::filesystem::path& out_dir);

// The checkpoints that retention may delete: all but the newest `keep` (≥ 2), pinned ones and
// `best_step`.
std::vector<CheckpointEntry> PastRetention(const std::vector<CheckpointEntry>& all, int keep,
                                           int64_t best_step);

}  // namespace nsa
