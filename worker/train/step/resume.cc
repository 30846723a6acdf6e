#include "worker/train/step/resume.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/job/load.h"
#include "common/job/resume_from.h"
#include "nlohmann/json.hpp"
#include "worker/train/model/parameters.h"
#include "worker/train/step/ranks/share_text.h"
#include "worker/train/step/ranks/work_apart.h"

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
  const bool has_own = HasPublished(launch) || !own.empty();
  switch (ResumeFromOf(launch.spec().restart(), launch.generation() > 1, has_own)) {
    case ResumeFrom::kOwn:
      return Newest(out_dir);
    case ResumeFrom::kNamed:
      return Named("restart.resume", resume);
    case ResumeFrom::kNever:
      break;
  }
  if (own.empty()) return ResumePoint{};
  return absl::FailedPreconditionError(
      absl::StrCat("restart.resume: never, but ", out_dir.string(), " has ", own.size(),
                   " checkpoints (0 wanted); take another out_dir, or resume: auto"));
}

absl::StatusOr<ResumePoint> Choose(const v1::WorkerLaunch& launch) {
  NSA_ASSIGN_OR_RETURN(ResumePoint point, ChooseCheckpoint(launch));
  const std::string& init = launch.spec().restart().init();
  if (!point.checkpoint.empty() || init.empty() || HasPublished(launch)) return point;
  NSA_ASSIGN_OR_RETURN(point, Named("restart.init", init));
  point.weights_only = true;
  return point;
}

// Waits for what other ranks do in WorkApart(), or does `choose` there: finding the newest good
// checkpoint reads whole files.
absl::Status ChooseApart(bool chooses, Comm* comm, const std::function<void()>& choose) {
  std::atomic<bool> cancelled{false};
  return WorkApart("resume", comm, &cancelled, [&] {
    if (chooses) choose();
    return absl::OkStatus();  // all hear of an error afterwards
  });
}

// Every rank receives what `speaker` has chosen.
absl::StatusOr<ResumePoint> Announce(int speaker, const absl::StatusOr<ResumePoint>& chosen,
                                     Comm* comm) {
  // A letter, and the path.
  absl::StatusOr<std::string> text = "";
  if (!chosen.ok()) text = chosen.status();
  if (chosen.ok()) text = (chosen->weights_only ? "w" : "c") + chosen->checkpoint.string();
  NSA_ASSIGN_OR_RETURN(text, ShareText("resume", speaker, text, comm));
  if (comm->rank() == speaker) return chosen;
  return ResumePoint{.checkpoint = text->substr(1), .weights_only = text->front() == 'w'};
}

// What the first rank of a machine found in the machine's out_dir, as numbers for a reduction by
// maximum. Other ranks say nothing.
struct Found {
  double step = -1;  // of the checkpoint; -1: none
  double code = -1;  // of the status; -1: says nothing
};

absl::StatusOr<std::vector<Found>> Gather(const Found& own, Comm* comm) {
  std::vector<Found> all(comm->world_size());
  all[comm->rank()] = own;
  NSA_RETURN_IF_ERROR(
      comm->AllReduce("resume", Reduce::kMax,
                      std::span<double>(reinterpret_cast<double*>(all.data()), 2 * all.size())));
  return all;
}

// Whether a machine where this went wrong may still receive the checkpoint of another one.
bool MayReceive(double code) {
  return code == static_cast<double>(absl::StatusCode::kOk) ||
         code == static_cast<double>(absl::StatusCode::kNotFound) ||
         code == static_cast<double>(absl::StatusCode::kDataLoss);
}

// The rank whose choice all take. Pure.
int SpeakerOf(const std::vector<Found>& all) {
  const auto rank_of = [&](auto it) { return static_cast<int>(it - all.begin()); };
  const auto refused = std::ranges::find_if(
      all, [](const Found& found) { return found.code >= 0 && !MayReceive(found.code); });
  if (refused != all.end()) return rank_of(refused);
  const auto newest = std::ranges::max_element(all, {}, &Found::step);
  if (newest->step >= 0) return rank_of(newest);
  const auto damaged =
      std::ranges::find(all, static_cast<double>(absl::StatusCode::kDataLoss), &Found::code);
  return damaged != all.end() ? rank_of(damaged) : 0;
}

// One line for each checkpoint that was found to be damaged.
std::vector<std::string> DamagedOf(const absl::StatusOr<ResumePoint>& chosen) {
  if (chosen.ok()) return chosen->rejected;
  if (!absl::IsDataLoss(chosen.status())) return {};
  return {std::string(chosen.status().message())};
}

// The step of the checkpoint to continue from; -1 if there is none.
absl::StatusOr<double> StepOf(const ResumePoint& point) {
  if (point.checkpoint.empty() || point.weights_only) return -1;
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointState state, ReadCheckpointState(point.checkpoint));
  return static_cast<double>(state.step());
}

absl::StatusOr<ResumePoint> ChooseAmongMachines(const v1::WorkerLaunch& launch,
                                                const OutDirRanks& ranks, Comm* comm) {
  const bool chooses = ranks.index == 0;
  absl::StatusOr<ResumePoint> chosen = ResumePoint{};
  NSA_RETURN_IF_ERROR(ChooseApart(chooses, comm, [&] { chosen = Choose(launch); }));
  Found own;
  if (chooses) {
    const absl::StatusOr<double> step = chosen.ok() ? StepOf(*chosen) : chosen.status();
    if (!step.ok()) chosen = step.status();
    own = {.step = step.value_or(-1), .code = static_cast<double>(step.status().code())};
  }
  NSA_ASSIGN_OR_RETURN(const std::vector<Found> all, Gather(own, comm));
  const int speaker = SpeakerOf(all);
  // Whatever the speaker says instead, the job would begin at step 0.
  if (comm->rank() == speaker && own.step < 0) {
    const absl::Status published = CheckPublishedCheckpoints(launch);
    if (!published.ok()) chosen = published;
  }
  absl::StatusOr<ResumePoint> point = Announce(speaker, chosen, comm);
  if (!point.ok()) return point;
  if (!point->checkpoint.empty()) point->from_rank = speaker;
  // Each machine reports its own damage, no matter which rank speaks.
  if (comm->rank() != speaker) point->rejected = DamagedOf(chosen);
  return point;
}

// Every rank gets the state or the error of rank `from`.
absl::StatusOr<v1::CheckpointState> SendState(int from,
                                              const absl::StatusOr<v1::CheckpointState>& state,
                                              Comm* comm) {
  absl::StatusOr<std::string> text = "";
  if (!state.ok()) text = state.status();
  if (state.ok()) text = state->SerializeAsString();
  NSA_ASSIGN_OR_RETURN(text, ShareText("resume", from, text, comm));
  v1::CheckpointState received;
  if (received.ParseFromString(*text)) return received;
  return absl::InternalError("state.json: not what the other rank sent; restart the job");
}

// Sends all `total` elements of a tensor; each rank keeps those of its `slice` in `values`. In
// pieces: while a rank passes one on, it receives the next. `whole` has all of them on rank `from`.
absl::Status SendFloats(int from, std::span<const float> whole, int64_t total, const Slice& slice,
                        std::span<float> values, Comm* comm) {
  constexpr int64_t kPiece = 1 << 20;
  std::vector<float> piece;
  for (int64_t at = 0; at < total; at += kPiece) {
    const Slice sent = {at, std::min(at + kPiece, total)}, kept = sent.Common(slice);
    piece.resize(sent.size());
    if (comm->rank() == from) std::ranges::copy(whole.subspan(at, sent.size()), piece.begin());
    NSA_RETURN_IF_ERROR(
        comm->Broadcast("checkpoint", from, std::as_writable_bytes(std::span<float>(piece))));
    if (kept.empty()) continue;
    const auto own = std::span<const float>(piece).subspan(kept.begin - at, kept.size());
    std::ranges::copy(own, values.begin() + (kept.begin - slice.begin));
  }
  return absl::OkStatus();
}

// Memory of the rank that reads a checkpoint for all, for what its target has not all of.
class WholeState {
 public:
  RestoreTarget TargetOf(const RestoreTarget& own) {
    RestoreTarget whole = own;
    size_ = own.layout->size();
    whole.parameters = Whole(own.weights, own.parameters, &parameters_);
    whole.first_moment = Whole(own.slice, own.first_moment, &first_);
    whole.second_moment = Whole(own.slice, own.second_moment, &second_);
    whole.slice.reset();
    whole.weights.reset();
    return whole;
  }

 private:
  std::span<float> Whole(const std::optional<Slice>& slice, std::span<float> values,
                         std::vector<float>* memory) const {
    if (!slice.has_value() || slice->size() == size_) return values;
    memory->resize(static_cast<size_t>(size_));
    return *memory;
  }

  int64_t size_ = 0;
  std::vector<float> parameters_, first_, second_;
};

// The job that an owner.json names; empty if it names none.
std::string JobOf(const nlohmann::json& owner) {
  const bool named = owner.is_object() && owner.contains("job_id") && owner["job_id"].is_string();
  return named ? owner["job_id"].get<std::string>() : "";
}

}  // namespace

bool HasPublished(const v1::WorkerLaunch& launch) {
  return launch.generation() > 1 && launch.resume_from_step() > 0;
}

absl::Status CheckPublishedCheckpoints(const v1::WorkerLaunch& launch) {
  if (!HasPublished(launch)) return absl::OkStatus();
  const std::filesystem::path out_dir = launch.spec().train().out_dir();
  const auto there = ListCheckpoints(out_dir);
  if (there.ok() && !there->empty()) return absl::OkStatus();
  return ReasonError(absl::StatusCode::kUnavailable, Reason::kCheckpointsMissing,
                     absl::StrCat("train.out_dir: ", out_dir.string(), " has no checkpoint (",
                                  CheckpointName(launch.resume_from_step()), " was published there",
                                  there.ok() ? "" : absl::StrCat("; ", there.status().message()),
                                  "); mount the volume or put the folder back, or submit the job "
                                  "under another name to begin "
                                  "anew"));
}

absl::StatusOr<ResumePoint> ChooseResume(const v1::WorkerLaunch& launch, const OutDirRanks& ranks,
                                         Comm* comm) {
  if (!ranks.everybody) return ChooseAmongMachines(launch, ranks, comm);
  absl::StatusOr<ResumePoint> chosen = ResumePoint{};
  NSA_RETURN_IF_ERROR(ChooseApart(comm->rank() == 0, comm, [&] {
    // On one machine every rank has checked it before it opened out_dir.
    const absl::Status published = CheckPublishedCheckpoints(launch);
    chosen = published.ok() ? Choose(launch) : published;
  }));
  return Announce(0, chosen, comm);
}

absl::StatusOr<v1::CheckpointState> ReadStateOf(const ResumePoint& point, Comm* comm) {
  if (point.from_rank == kEveryRank) return ReadCheckpointState(point.checkpoint);
  absl::StatusOr<v1::CheckpointState> state = v1::CheckpointState();
  if (comm->rank() == point.from_rank) state = ReadCheckpointState(point.checkpoint);
  return SendState(point.from_rank, state, comm);
}

absl::StatusOr<v1::CheckpointState> LoadFor(const ResumePoint& point, const std::string& job_hash,
                                            const RestoreTarget& target, Comm* comm) {
  absl::StatusOr<v1::CheckpointState> state = v1::CheckpointState();
  WholeState whole;
  RestoreTarget read;
  std::atomic<bool> cancelled{false};
  NSA_RETURN_IF_ERROR(WorkApart("checkpoint", comm, &cancelled, [&] {
    if (point.from_rank == kEveryRank) {
      state = LoadCheckpoint(point.checkpoint, job_hash, target);
      return state.status();
    }
    if (comm->rank() == point.from_rank) {
      read = whole.TargetOf(target);
      state = LoadCheckpoint(point.checkpoint, job_hash, read);
    }
    return absl::OkStatus();
  }));
  if (point.from_rank == kEveryRank) return state;
  NSA_ASSIGN_OR_RETURN(state, SendState(point.from_rank, state, comm));
  const int64_t total = target.layout->size();
  NSA_RETURN_IF_ERROR(SendFloats(point.from_rank, read.parameters, total,
                                 target.weights.value_or(Slice{0, total}), target.parameters,
                                 comm));
  if (target.first_moment.empty() && !target.slice.has_value()) return state;
  NSA_RETURN_IF_ERROR(SendFloats(point.from_rank, read.first_moment, total, target.moments(),
                                 target.first_moment, comm));
  NSA_RETURN_IF_ERROR(SendFloats(point.from_rank, read.second_moment, total, target.moments(),
                                 target.second_moment, comm));
  return state;
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
