#include "worker/train/step/stored_checkpoint.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "worker/train/checkpoint/upload/checkpoint_store.h"
#include "worker/train/step/ranks/share_text.h"
#include "worker/train/step/ranks/work_apart.h"
#include "worker/train/step/resume.h"

namespace nsa::train {
namespace {

constexpr absl::Duration kStorePatience = absl::Minutes(2);

absl::StatusOr<std::string> Download(const v1::WorkerLaunch& launch, const Folder& out_dir,
                                     const std::atomic<bool>* cancelled) {
  if (!HasPublished(launch)) return "";
  const absl::StatusOr<NewestGood> own = FindNewestGood(launch.spec().train().out_dir());
  const int64_t has = own.ok() && own->found ? own->entry.step : 0;
  if (has >= launch.resume_from_step()) return "";
  NSA_ASSIGN_OR_RETURN(const auto store,
                       CheckpointStore::Open(launch.spec().train().checkpoint_url(),
                                             launch.job_id(), kStorePatience, cancelled));
  NSA_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> stored, store->List());
  std::erase_if(stored, [](const StoredCheckpoint& one) { return !one.complete; });
  if (stored.empty() || stored.back().step <= has) return "";
  NSA_ASSIGN_OR_RETURN(const Folder checkpoints, out_dir.MakeFolder(CheckpointsDir("").string()));
  NSA_RETURN_IF_ERROR(store->Download(stored.back(), checkpoints));
  return absl::StrCat(store->NameOf(stored.back().step), ": downloaded into ",
                      checkpoints.path().string(), ", where the newest checkpoint was of step ",
                      has);
}

}  // namespace

absl::StatusOr<std::string> DownloadIfMissing(const v1::WorkerLaunch& launch, const Folder& out_dir,
                                              Comm* comm) {
  if (launch.spec().train().checkpoint_url().empty()) return "";
  std::atomic<bool> cancelled{false};
  absl::StatusOr<std::string> result = "";
  NSA_RETURN_IF_ERROR(WorkApart("resume", comm, &cancelled, [&] {
    if (comm->rank() == 0) result = Download(launch, out_dir, &cancelled);
    return absl::OkStatus();
  }));
  if (!result.ok()) {
    result = ReasonError(absl::StatusCode::kUnavailable, Reason::kCheckpointsMissing,
                         absl::StrCat("train.checkpoint_url: ", result.status().message()));
  }
  NSA_ASSIGN_OR_RETURN(const std::string text, ShareText("resume", 0, result, comm));
  return comm->rank() == 0 ? text : "";
}

}  // namespace nsa::train
