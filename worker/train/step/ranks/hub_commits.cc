#include "worker/train/step/ranks/hub_commits.h"

#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/job/data/data_files.h"
#include "common/job/resume_from.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/data/read/source_files.h"
#include "worker/train/data/remote/remote.h"
#include "worker/train/step/ranks/share_text.h"
#include "worker/train/step/resume.h"

namespace nsa::train {
namespace {

// The first URL that names a branch or tag.
struct Branch {
  std::string field;  // "data.path[0]"
  std::string url;
};
using Branches = std::map<std::string, Branch>;  // by HubPath::key()

Branches BranchesOf(const v1::DataSpec& data) {
  Branches branches;
  for (const DataFiles& files : AllDataFiles(data)) {
    for (size_t i = 0; i < files.paths.size(); ++i) {
      const absl::StatusOr<HubPath> hub = ParseHubUrl(files.paths[i]);
      if (!hub.ok() || hub->pinned()) continue;
      branches.try_emplace(hub->key(), Branch{files.FieldOf(i), files.paths[i]});
    }
  }
  return branches;
}

// The checkpoints that this start may continue from, as resume.h chooses, oldest first.
std::vector<CheckpointEntry> CheckpointsFor(const v1::WorkerLaunch& launch) {
  const std::string& resume = launch.spec().restart().resume();
  std::vector<CheckpointEntry> own =
      ListCheckpoints(launch.spec().train().out_dir()).value_or(std::vector<CheckpointEntry>());
  const bool restarted = launch.generation() > 1, has_own = HasPublished(launch) || !own.empty();
  if (ResumeFromOf(launch.spec().restart(), restarted, has_own) != ResumeFrom::kNamed) {
    return own;
  }
  const std::optional<std::filesystem::path> path = LookUpNamed(resume);
  return path ? std::vector<CheckpointEntry>{{.path = *path}} : std::vector<CheckpointEntry>();
}

// What the newest checkpoint that can be read says about these branches.
HubCommits RecordedCommits(const v1::WorkerLaunch& launch, const Branches& branches) {
  const std::vector<CheckpointEntry> checkpoints = CheckpointsFor(launch);
  for (auto entry = checkpoints.rbegin(); entry != checkpoints.rend(); ++entry) {
    const absl::StatusOr<v1::CheckpointState> state = ReadCheckpointState(entry->path);
    if (!state.ok()) continue;
    HubCommits commits;
    for (const auto& [branch, commit] : state->data().hub_commits()) {
      if (branches.contains(branch) && IsHubCommit(commit)) commits[branch] = commit;
    }
    return commits;
  }
  return {};
}

// Where branches are now.
class Hub {
 public:
  explicit Hub(const v1::WorkerLaunch& launch) : launch_(launch) {}

  // Empty if the Hub does not say it.
  absl::StatusOr<std::string> Commit(const std::string& url) {
    if (progress_.remote == nullptr) {
      NSA_ASSIGN_OR_RETURN(progress_.remote,
                           RemoteFor(launch_.spec().data(), {launch_.allowed_urls().begin(),
                                                             launch_.allowed_urls().end()}));
    }
    return progress_.remote->Commit(url, &progress_);
  }

 private:
  const v1::WorkerLaunch& launch_;
  ReadProgress progress_;
};

// `recorded` with the commits of the other branches, as a DataCursor that travels to other ranks.
absl::StatusOr<std::string> Complete(const Branches& branches, const HubCommits& recorded,
                                     Hub* hub) {
  v1::DataCursor cursor;
  for (const auto& [branch, named] : branches) {
    const auto known = recorded.find(branch);
    const absl::StatusOr<std::string> commit =
        known == recorded.end() ? hub->Commit(named.url) : known->second;
    NSA_RETURN_IF_ERROR(Annotate(commit.status(), named.field));
    if (!commit->empty()) (*cursor.mutable_hub_commits())[branch] = *commit;
  }
  return cursor.SerializeAsString();
}

std::vector<std::string> MovedOf(const Branches& branches, const HubCommits& commits, Hub* hub) {
  std::vector<std::string> moved;
  for (const auto& [branch, commit] : commits) {
    // Whether it can be asked for or not, the run reads the commit.
    const std::string now = hub->Commit(branches.at(branch).url).value_or("");
    if (now.empty() || now == commit) continue;
    moved.push_back(absl::StrCat(
        "data: ", branch, " is at commit ", now, " on the Hub now; the run goes on with ", commit,
        ", of its checkpoint; start in another train.out_dir to train on the new files"));
  }
  return moved;
}

}  // namespace

bool ReadsHubBranches(const v1::DataSpec& data) { return !BranchesOf(data).empty(); }

absl::StatusOr<AgreedCommits> AgreeOnHubCommits(const v1::WorkerLaunch& launch, Comm* comm) {
  const Branches branches = BranchesOf(launch.spec().data());
  const HubCommits recorded = RecordedCommits(launch, branches);
  double lowest = recorded.empty() ? comm->world_size() : comm->rank();
  NSA_RETURN_IF_ERROR(comm->AllReduce("hub", Reduce::kMin, std::span<double>(&lowest, 1)));
  const bool continues = lowest < comm->world_size();
  const int speaker = continues ? static_cast<int>(lowest) : 0;
  Hub hub(launch);
  absl::StatusOr<std::string> text = "";
  if (comm->rank() == speaker) text = Complete(branches, recorded, &hub);
  if (!text.ok() && launch.spec().data().allow_synthetic_fallback()) text = "";
  NSA_ASSIGN_OR_RETURN(text, ShareText("hub", speaker, text, comm));
  v1::DataCursor cursor;
  if (!cursor.ParseFromString(*text)) {
    return absl::InternalError("commits of the Hub: not what the other rank sent; restart the job");
  }
  AgreedCommits agreed;
  agreed.commits.insert(cursor.hub_commits().begin(), cursor.hub_commits().end());
  if (comm->rank() != 0) return agreed;
  for (const auto& [branch, commit] : agreed.commits) {
    spdlog::info("data: {} is read at commit {}", branch, commit);
  }
  if (continues) agreed.moved = MovedOf(branches, agreed.commits, &hub);
  return agreed;
}

}  // namespace nsa::train
