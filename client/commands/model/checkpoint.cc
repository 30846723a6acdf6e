// nsactl checkpoint: lists, verifies and pins checkpoints. The target is a job, or a folder on this
// machine, which needs no coordinator.
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/model/find_model.h"
#include "client/show/human.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/checkpoint_info.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

struct CheckpointFlags {
  std::string target;
  int64_t step = 0;
};

// A folder name without a slash is taken for a job. When that job does not exist but the folder
// does, the error says how to name the folder.
absl::Status HintAtFolder(const absl::Status& status, const std::string& target) {
  std::error_code error;
  if (!absl::IsNotFound(status) || !fs::is_directory(target, error)) return status;
  return absl::NotFoundError(absl::StrCat(status.message(), "; for the folder write ./", target));
}

// PATH is an out_dir, its checkpoints folder, or one checkpoint.
absl::StatusOr<std::vector<CheckpointEntry>> EntriesAt(const std::string& target) {
  std::error_code error;
  fs::path path = fs::absolute(target, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (!fs::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat(
        target, ": is not a folder; name an out_dir or a checkpoint, or a job without a slash"));
  }
  // One checkpoint: called step-…, even when its state.json is damaged, or with a state.json.
  const bool named_like_one = absl::StartsWith(path.filename().string(), "step-");
  if (named_like_one || fs::exists(path / "state.json", error)) {
    const absl::StatusOr<v1::CheckpointState> state = ReadCheckpointState(path);
    return std::vector<CheckpointEntry>{{state.ok() ? state->step() : 0, path}};
  }
  return ListCheckpoints(path.filename() == "checkpoints" ? path.parent_path() : path);
}

absl::StatusOr<v1::ListCheckpointsResponse> ListAt(const std::string& target) {
  NSA_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, EntriesAt(target));
  v1::ListCheckpointsResponse response;
  for (const CheckpointEntry& entry : entries)
    *response.add_checkpoints() = CheckpointInfoOf(entry);
  return response;
}

// The checkpoint of --step, or the newest without it. `entries` are oldest first.
absl::StatusOr<CheckpointEntry> ChosenCheckpoints(const std::vector<CheckpointEntry>& entries,
                                                  const CheckpointFlags& flags) {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (flags.step == 0 || entry->step == flags.step) return *entry;
  }
  return absl::NotFoundError(absl::StrCat(flags.target, ": has no checkpoint",
                                          flags.step != 0 ? absl::StrCat(" ", flags.step) : "",
                                          "; see `nsactl checkpoint list ", flags.target, "`"));
}

absl::StatusOr<v1::VerifyCheckpointResponse> VerifyAt(const CheckpointFlags& flags) {
  NSA_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, EntriesAt(flags.target));
  NSA_ASSIGN_OR_RETURN(const CheckpointEntry entry, ChosenCheckpoints(entries, flags));
  v1::VerifyCheckpointResponse response;
  *response.mutable_checkpoint() = CheckpointInfoOf(entry);
  for (const std::string& problem : VerifyCheckpoint(entry.path)) response.add_problems(problem);
  return response;
}

// The id of the job of this id or name.
absl::StatusOr<std::string> IdOf(Client* client, const std::string& target,
                                 v1::JobUse use = v1::JOB_USE_UNSPECIFIED) {
  const absl::StatusOr<v1::Job> job = client->GetJob(target, use);
  NSA_RETURN_IF_ERROR(HintAtFolder(job.status(), target));
  return job->id();
}

absl::StatusOr<v1::ListCheckpointsResponse> ListOfJob(Session& session, const std::string& target,
                                                      v1::JobUse use = v1::JOB_USE_UNSPECIFIED) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const std::string id, IdOf(client, target, use));
  return client->ListCheckpoints(id);
}

// The folders of a job's checkpoints, which may be on another machine.
absl::StatusOr<std::vector<CheckpointEntry>> EntriesOfJob(Session& session,
                                                          const std::string& job) {
  NSA_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse found,
                       ListOfJob(session, job, v1::JOB_USE_EDIT));
  return EntriesOf(found);
}

absl::StatusOr<ExitCode> Pin(Session& session, const CheckpointFlags& flags, bool pin) {
  std::vector<CheckpointEntry> entries;
  if (IsPath(flags.target)) {
    NSA_ASSIGN_OR_RETURN(entries, EntriesAt(flags.target));
  } else {
    NSA_ASSIGN_OR_RETURN(entries, EntriesOfJob(session, flags.target));
  }
  NSA_ASSIGN_OR_RETURN(const CheckpointEntry entry, ChosenCheckpoints(entries, flags));
  NSA_RETURN_IF_ERROR(SetPinned(entry.path, pin));
  if (!session.PrintDocumentOrName(CheckpointInfoOf(entry), entry.path.string())) {
    session.out() << entry.path.string() << ": "
                  << (pin ? "pinned: kept regardless of train.keep_checkpoints"
                          : "not pinned: deleted once there are train.keep_checkpoints newer ones")
                  << "\n";
  }
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> List(Session& session, const CheckpointFlags& flags) {
  v1::ListCheckpointsResponse response;
  if (IsPath(flags.target)) {
    NSA_ASSIGN_OR_RETURN(response, ListAt(flags.target));
  } else {
    NSA_ASSIGN_OR_RETURN(response, ListOfJob(session, flags.target));
  }
  if (session.structured()) {
    session.PrintDocument(response);
    return ExitCode::kOk;
  }
  if (session.flags().format == Format::kName) {
    for (const auto& checkpoint : response.checkpoints())
      session.out() << checkpoint.path() << "\n";
    return ExitCode::kOk;
  }
  Table table({{"STEP", true},
               {"AGE", true},
               {"SIZE", true},
               {"VAL LOSS", true},
               {"RANKS", true},
               {"PINNED"},
               {"PATH"}});
  for (const v1::CheckpointInfo& c : response.checkpoints()) {
    const std::string path = c.error().empty() ? c.path() : absl::StrCat(c.path(), ": ", c.error());
    table.Add({absl::StrCat(c.step()),
               ShortAge(session.now(), c.unix_nanos()),
               HumanBytes(c.bytes()),
               HumanLoss(c.val_loss()),
               absl::StrCat(c.world_size()),
               c.pinned() ? "yes" : "-",
               {path, c.error().empty() ? Colour::kNone : Colour::kBad}});
  }
  if (table.empty()) {
    session.Note("no checkpoints yet");
  } else {
    session.PrintTable(table);
  }
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> Verify(Session& session, const CheckpointFlags& flags) {
  v1::VerifyCheckpointResponse response;
  if (IsPath(flags.target)) {
    NSA_ASSIGN_OR_RETURN(response, VerifyAt(flags));
  } else {
    v1::VerifyCheckpointRequest request;
    NSA_ASSIGN_OR_RETURN(Client * client, session.client());
    NSA_ASSIGN_OR_RETURN(*request.mutable_job(), IdOf(client, flags.target));
    request.set_step(flags.step);
    NSA_ASSIGN_OR_RETURN(
        response, client->Call<v1::VerifyCheckpointResponse>(request, {.timeout = kVerifyTimeout}));
  }
  const v1::CheckpointInfo& checkpoint = response.checkpoint();
  if (session.structured()) {
    session.PrintDocument(response);
  } else {
    for (const std::string& problem : response.problems()) session.out() << problem << "\n";
    if (response.problems().empty()) {
      session.out() << checkpoint.path() << ": good (step " << checkpoint.step() << ", "
                    << HumanBytes(checkpoint.bytes()) << ", every length and hash)\n";
    }
  }
  if (response.problems().empty()) return ExitCode::kOk;
  return absl::DataLossError(absl::StrCat(
      checkpoint.path(), ": ", response.problems_size(),
      response.problems_size() == 1 ? " problem" : " problems",
      "; a resume skips this checkpoint and uses an older one, see `nsactl checkpoint list`"));
}

}  // namespace

void AddCheckpoint(Cli* cli) {
  const auto flags = std::make_shared<CheckpointFlags>();
  Options group =
      cli->Add({.name = "checkpoint",
                .what = "List, verify and pin checkpoints",
                .group = "Records",
                .more = "A target with a slash is a folder on this machine (an out_dir or "
                        "one checkpoint) and needs no coordinator.",
                .examples = "nsactl checkpoint list demo\n"
                            "nsactl checkpoint verify ./out\n"
                            "nsactl checkpoint pin demo --step 5000"});
  Options list =
      cli->Add({.name = "list",
                .what = "List a job's checkpoints, oldest first",
                .examples = "nsactl checkpoint list demo\nnsactl checkpoint list ./out -o json",
                .run = [flags](Session& session) { return List(session, *flags); },
                .parent = &group});
  list.Argument("JOB|PATH", &flags->target, "Job id or name, or a folder");
  Options verify =
      cli->Add({.name = "verify",
                .what = "Read a checkpoint and compare every length and hash",
                .more = "Exit code 1 when a file is not as it was written; each bad file is named.",
                .examples = "nsactl checkpoint verify demo\n"
                            "nsactl checkpoint verify demo --step 5000\n"
                            "nsactl checkpoint verify ./out/checkpoints/step-00005000",
                .run = [flags](Session& session) { return Verify(session, *flags); },
                .parent = &group});
  Options pin =
      cli->Add({.name = "pin",
                .what = "Keep a checkpoint: retention does not delete it",
                .more = "Creates the file PINNED in the checkpoint's folder, which must be on this "
                        "machine. Pinning again changes nothing.",
                .examples = "nsactl checkpoint pin demo\n"
                            "nsactl checkpoint pin demo --step 5000\n"
                            "nsactl checkpoint pin ./out/checkpoints/step-00005000",
                .run = [flags](Session& session) { return Pin(session, *flags, true); },
                .parent = &group});
  Options unpin =
      cli->Add({.name = "unpin",
                .what = "Let retention delete a checkpoint again",
                .more = "Removes the file PINNED; the checkpoint itself stays until newer ones "
                        "replace it.",
                .examples = "nsactl checkpoint unpin demo --step 5000\n"
                            "nsactl checkpoint unpin ./out/checkpoints/step-00005000",
                .run = [flags](Session& session) { return Pin(session, *flags, false); },
                .parent = &group});
  for (Options* command : {&verify, &pin, &unpin}) {
    command->Argument("JOB|PATH", &flags->target, "Job id or name, or a folder");
    command->Number("--step", &flags->step, {.least = 1},
                    "The checkpoint of this step (default: the newest)");
  }
}

}  // namespace nsa::client
