#include "client/admin/backup.h"

#include <memory>

#include "client/admin/absolute.h"
#include "client/connect/local/local_worker.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

struct Flags {
  std::string folder;
  std::string state_dir;
  std::string config;
};

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
  NSA_ASSIGN_OR_RETURN(const std::string said, RunWorker(WorkerBesideThisProgram("nsa-coordinator"),
                                                         arguments, &session.interrupt()));
  session.out() << said;
  return ExitCode::kOk;
}

void AddOne(Cli* cli, const Cli::Command& command, const std::shared_ptr<Flags>& flags,
            const std::string& folder) {
  Options options = cli->Add(command);
  options.Argument("DIR", &flags->folder, folder);
  options.Text("--config", "FILE", &flags->config,
               "Configuration of the coordinator, for its state_dir");
  options.Text("--state-dir", "DIR", &flags->state_dir,
               "State folder (default: that of --config, else $NSA_STATE_DIR, else "
               "~/.local/state/nsa)");
}

}  // namespace

void AddBackup(Cli* cli, const Options& admin) {
  const auto flags = std::make_shared<Flags>();
  AddOne(cli,
         {.name = "backup",
          .what = "Copy a coordinator's state folder while it runs",
          .more = "Writes jobs, events, records, logs, tokens and the audit log, as they are now, "
                  "to DIR, which must be\nnew or empty, with a hash of each file. Secrets are in "
                  "it: DIR has mode 0700. Out_dirs and\ncheckpoints of jobs are not in it. Run it "
                  "on the coordinator's machine, as its user.",
          .examples = "nsactl admin backup /mnt/backup/nsa-$(date +%F)\n"
                      "sudo -u nsa nsactl admin backup /mnt/backup/nsa --config "
                      "/etc/nsa/coordinator.yaml",
          .run = [flags](Session& session) { return RunCoordinator(session, "--backup", *flags); },
          .parent = &admin},
         flags, "Folder of the backup");
  AddOne(cli,
         {.name = "restore",
          .what = "Put a backup in the place of a coordinator's state folder",
          .more = "The coordinator must not run. Every hash is compared first. What was in the "
                  "state folder before is moved\nto replaced-DATE in it. When the coordinator "
                  "starts, it knows what it knew at the time of the backup: ranks\nof jobs that "
                  "are younger are ended, and jobs that have gone on since continue from their "
                  "newest checkpoints.",
          .examples = "nsactl admin restore /mnt/backup/nsa-2026-11-25",
          .run = [flags](Session& session) { return RunCoordinator(session, "--restore", *flags); },
          .parent = &admin},
         flags, "Folder of the backup");
}

}  // namespace nsa::client
