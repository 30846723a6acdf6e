#include "client/admin/backup.h"

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/admin/absolute.h"
#include "client/connect/local/local_worker.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct Flags {
  std::string folder;
  std::string state_dir;
  std::string config;
  int keep = 0;
  bool make_new = false;
};

// What nsa-coordinator's exit codes mean (server/main.cc).
absl::StatusCode MeaningOf(int exit_code) {
  switch (exit_code) {
    case 2:
      return absl::StatusCode::kInvalidArgument;
    case 3:
      return absl::StatusCode::kDataLoss;
    case 5:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

// nsa-coordinator does it: it knows its store.
absl::StatusOr<ExitCode> RunCoordinator(Session& session, const std::string& flag,
                                        const Flags& flags) {
  std::vector<std::string> arguments = {flag, Absolute(flags.folder), "--log-level", "off"};
  if (!flags.config.empty()) {
    arguments.insert(arguments.end(), {"--config", Absolute(flags.config)});
  }
  if (!flags.state_dir.empty()) {
    arguments.insert(arguments.end(), {"--state-dir", Absolute(flags.state_dir)});
  }
  if (flags.make_new) arguments.emplace_back("--new");
  if (flags.keep != 0) {
    arguments.insert(arguments.end(), {"--keep", absl::StrCat(flags.keep)});
  }
  const std::string program = WorkerBesideThisProgram("nsa-coordinator");
  NSA_ASSIGN_OR_RETURN(const Finished finished,
                       RunProgram(program, arguments, &session.interrupt()));
  if (finished.exit.code == 0) {
    session.out() << finished.output;
    return ExitCode::kOk;
  }
  absl::string_view why = absl::StripAsciiWhitespace(finished.output);
  absl::ConsumePrefix(&why, "nsa-coordinator: ");
  return absl::Status(MeaningOf(finished.exit.code),
                      why.empty() ? EndOf(program, finished.exit) : std::string(why));
}

Options AddOne(Cli* cli, const Cli::Command& command, const std::shared_ptr<Flags>& flags,
               const std::string& folder) {
  Options options = cli->Add(command);
  options.Argument("DIR", &flags->folder, folder);
  options.Text("--config", "FILE", &flags->config,
               "Configuration of the coordinator, for its state_dir");
  options.Text("--state-dir", "DIR", &flags->state_dir,
               "State folder (default: that of --config, else $NSA_STATE_DIR, else "
               "~/.local/state/nsa)");
  return options;
}

}  // namespace

void AddBackup(Cli* cli, const Options& admin) {
  const auto flags = std::make_shared<Flags>();
  Options backup = AddOne(
      cli,
      {.name = "backup",
       .what = "Copy a coordinator's state folder while it runs",
       .more = "Writes jobs, events, records, logs, tokens and the audit log, as they are now, "
               "to DIR, which must be\nnew or empty, with a hash of each file, and compares the "
               "hashes. Secrets are in it: DIR has mode\n0700. Out_dirs and checkpoints of jobs "
               "are not in it. Run it on the coordinator's machine, as its\nuser. With --keep, "
               "DIR is a folder of backups: the new one is DIR/nsa-DATE, and then the oldest are\n"
               "removed. The metric nsa_last_backup_timestamp_seconds says when the last one was "
               "made.",
       .examples = "nsactl admin backup /mnt/backup/nsa-$(date +%F)\n"
                   "nsactl admin backup /mnt/backup --keep 14\n"
                   "sudo -u nsa nsactl admin backup /mnt/backup/nsa --config "
                   "/etc/nsa/coordinator.yaml",
       .run = [flags](Session& session) { return RunCoordinator(session, "--backup", *flags); },
       .parent = &admin},
      flags, "Folder of the backup; with --keep, of all backups");
  backup.Number("--keep", &flags->keep, {.least = 1, .most = 100'000},
                "Keep the newest N backups in DIR");
  Options verify = cli->Add(
      {.name = "verify",
       .what = "Check that a backup is whole",
       .more = "Compares the hash of every file and the version of the store, as `restore` does "
               "before it changes anything.",
       .examples = "nsactl admin verify /mnt/backup/nsa-2026-11-25",
       .run =
           [flags](Session& session) { return RunCoordinator(session, "--verify-backup", *flags); },
       .parent = &admin});
  verify.Argument("DIR", &flags->folder, "Folder of the backup");
  Options restore = AddOne(
      cli,
      {.name = "restore",
       .what = "Put a backup in the place of a coordinator's state folder",
       .more =
           "The coordinator must not run. Every hash is compared first. Its files in the state "
           "folder are moved to\nreplaced-DATE in that folder; other files stay. When the "
           "coordinator starts, it knows what it knew at\nthe time of the backup: ranks of "
           "younger jobs are ended, and jobs that have gone on since continue\nfrom their newest "
           "checkpoints.",
       .examples = "nsactl admin restore /mnt/backup/nsa-2026-11-25",
       .run = [flags](Session& session) { return RunCoordinator(session, "--restore", *flags); },
       .parent = &admin},
      flags, "Folder of the backup");
  restore.Flag("--new", &flags->make_new,
               "Make a state folder where no coordinator has had one, as on another machine");
}

}  // namespace nsa::client
