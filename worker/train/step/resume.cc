#include "worker/train/step/resume.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/job/load.h"
#include "nlohmann/json.hpp"

namespace nsa::train {
namespace {

absl::StatusOr<ResumePoint> Newest(const std::filesystem::path& out_dir) {
  NSA_ASSIGN_OR_RETURN(NewestGood newest, FindNewestGood(out_dir));
  ResumePoint point;
  if (newest.found) point.checkpoint = newest.entry.path;
  point.rejected = std::move(newest.rejected);
  return point;
}

// The checkpoint that a key of the job names: a checkpoint folder, or the newest of an out_dir.
absl::StatusOr<ResumePoint> Named(std::string_view field, const std::string& path) {
  absl::StatusOr<NewestGood> named = FindNamed(path);
  if (!named.ok()) return Annotate(named.status(), field);
  return ResumePoint{.checkpoint = named->entry.path, .rejected = std::move(named->rejected)};
}

absl::StatusOr<ResumePoint> ChooseCheckpoint(const v1::WorkerLaunch& launch) {
  const std::filesystem::path out_dir = launch.spec().train().out_dir();
  const std::string& resume = launch.spec().restart().resume();
  NSA_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> own, ListCheckpoints(out_dir));
  if (resume.empty() || resume == "auto") return Newest(out_dir);
  if (launch.generation() > 1 && !own.empty()) return Newest(out_dir);
  if (resume != "never") return Named("restart.resume", resume);
  if (own.empty()) return ResumePoint{};
  return absl::FailedPreconditionError(
      absl::StrCat("restart.resume: never, but ", out_dir.string(), " has ", own.size(),
                   " checkpoints (0 wanted); take another out_dir, or resume: auto"));
}

absl::StatusOr<ResumePoint> Choose(const v1::WorkerLaunch& launch) {
  NSA_ASSIGN_OR_RETURN(ResumePoint point, ChooseCheckpoint(launch));
  const std::string& init = launch.spec().restart().init();
  if (!point.checkpoint.empty() || init.empty()) return point;
  NSA_ASSIGN_OR_RETURN(point, Named("restart.init", init));
  point.weights_only = true;
  return point;
}

// What rank 0 broadcasts: a status code; the path of the checkpoint or the message of the error;
// the word of the error's reason; and whether only the weights are taken.
struct Decision {
  int32_t code = 0;
  int32_t weights_only = 0;
  std::array<char, 8144> text = {};
  std::array<char, 40> reason = {};
};

template <size_t N>
void Put(const std::string& text, std::array<char, N>* field) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), field->begin());
}

template <size_t N>
std::string Get(const std::array<char, N>& field) {
  return std::string(field.data(), strnlen(field.data(), N));
}

Decision Encode(const absl::StatusOr<ResumePoint>& chosen) {
  Decision decision{.code = static_cast<int32_t>(chosen.status().code()),
                    .weights_only = chosen.ok() && chosen->weights_only};
  Put(chosen.ok() ? chosen->checkpoint.string() : std::string(chosen.status().message()),
      &decision.text);
  if (const std::optional<Reason> reason = ReasonOf(chosen.status())) {
    Put(Word(*reason), &decision.reason);
  }
  return decision;
}

absl::StatusOr<ResumePoint> Decode(const Decision& decision) {
  if (decision.code == 0) {
    return ResumePoint{.checkpoint = Get(decision.text),
                       .weights_only = decision.weights_only != 0};
  }
  const absl::Status status(static_cast<absl::StatusCode>(decision.code), Get(decision.text));
  const std::optional<Reason> reason = ReasonFromWord(Get(decision.reason));
  return reason.has_value() ? WithReason(status, *reason) : status;
}

// The job that an owner.json names; empty if it names none.
std::string JobOf(const nlohmann::json& owner) {
  const bool named = owner.is_object() && owner.contains("job_id") && owner["job_id"].is_string();
  return named ? owner["job_id"].get<std::string>() : "";
}

}  // namespace

absl::Status CheckPublishedCheckpoints(const v1::WorkerLaunch& launch) {
  const std::filesystem::path out_dir = launch.spec().train().out_dir();
  const std::filesystem::path published = launch.spec().restart().resume();
  if (launch.generation() <= 1 || published.parent_path() != CheckpointsDir(out_dir)) {
    return absl::OkStatus();
  }
  const auto there = ListCheckpoints(out_dir);
  if (there.ok() && !there->empty()) return absl::OkStatus();
  return ReasonError(absl::StatusCode::kUnavailable, Reason::kCheckpointsMissing,
                     absl::StrCat("train.out_dir: ", out_dir.string(), " has no checkpoint (",
                                  published.filename().string(), " was published there",
                                  there.ok() ? "" : absl::StrCat("; ", there.status().message()),
                                  "); mount the volume or put the folder back, or submit the job "
                                  "under another name to begin "
                                  "anew"));
}

absl::StatusOr<ResumePoint> ChooseResume(const v1::WorkerLaunch& launch, Comm* comm) {
  absl::StatusOr<ResumePoint> chosen = ResumePoint{};
  Decision decision;
  if (comm->rank() == 0) {
    chosen = Choose(launch);
    decision = Encode(chosen);
  }
  NSA_RETURN_IF_ERROR(
      comm->Broadcast("resume", 0, std::as_writable_bytes(std::span<Decision>(&decision, 1))));
  return comm->rank() == 0 ? chosen : Decode(decision);
}

absl::Status ClaimOutDir(const v1::WorkerLaunch& launch, const Folder& out_dir) {
  const absl::StatusOr<std::string> content = out_dir.Read("owner.json");
  if (content.ok()) {
    const auto owner = nlohmann::json::parse(*content, nullptr, /*allow_exceptions=*/false);
    const std::string job = JobOf(owner);
    if (owner.is_object() && job == launch.job_id()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("train.out_dir: ", out_dir.path().string(), " belongs to ",
                     job.empty() ? "a run without a coordinator" : absl::StrCat("job ", job),
                     "; take another out_dir, or remove its owner.json if that run is over and "
                     "deleted"));
  }
  if (!absl::IsNotFound(content.status())) return Annotate(content.status(), "train.out_dir");
  const nlohmann::json owner = {{"job_id", launch.job_id()}, {"job_hash", JobHash(launch.spec())}};
  return out_dir.WriteAtomically("owner.json", owner.dump(2) + "\n");
}

}  // namespace nsa::train
