#include "server/provision/slurm.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/decide/allocation/slurm_reply.h"
#include "server/provision/allocation_folder.h"
#include "server/provision/slurm_script.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr size_t kPrintedBytes = 8 << 20;  // 80,000 jobs of one user

std::string NameOf(const std::string& program) {
  return std::filesystem::path(program).filename().string();
}

// sbatch gives the job the environment that it has itself, so it has little.
std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> environment =
      FilterEnvironment({"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SLURM_CONF"});
  environment["SLURM_TIME_FORMAT"] = "%s";
  return environment;
}

absl::Status ErrorOf(const std::string& program, const CommandEnd& end) {
  const std::string said = ShortError(end.errors.empty() ? end.output : end.errors);
  if (end.exit->signal != 0) {
    return absl::UnavailableError(absl::StrCat(program, " was ended by signal ", end.exit->signal));
  }
  return absl::UnavailableError(absl::StrCat(
      program, ": ", said.empty() ? absl::StrCat("exit code ", end.exit->code) : said));
}

}  // namespace

absl::StatusOr<CommandEnd> Slurm::Run(const std::string& program,
                                      std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program);
  NSA_ASSIGN_OR_RETURN(CommandEnd end, RunCommand({.argv = std::move(arguments),
                                                   .environment = Environment(),
                                                   .limit = kPatience,
                                                   .printed_bytes = kPrintedBytes},
                                                  cancelled_));
  if (!end.exit.has_value()) {
    return absl::UnavailableError(
        absl::StrCat(NameOf(program), " has not ended after ", absl::FormatDuration(kPatience)));
  }
  return end;
}

absl::StatusOr<std::string> Slurm::Submit(const v1::StoredJob& job) {
  NSA_RETURN_IF_ERROR(CheckLimit(job, options_.config));
  const AllocationFolder folder(options_.shared_dir, job.job().allocation().id());
  const auto& path = folder.path();
  for (int i = 0; i < MachinesOf(job.job().spec()); ++i) {
    NSA_RETURN_IF_ERROR(
        folder.Write(absl::StrCat("agent-", i, ".yaml"), AgentYaml(job, options_, path, i)));
  }
  NSA_RETURN_IF_ERROR(folder.Write("agent.sh", AgentScript(options_, path)));
  NSA_RETURN_IF_ERROR(folder.Write("run.sh", RunScript(job, options_, path)));
  NSA_ASSIGN_OR_RETURN(const CommandEnd end,
                       Run(options_.sbatch, SbatchArguments(job, options_, path)));
  if (end.exit->code == 0 && end.exit->signal == 0) {
    std::string number = ReadSbatch(end.output);
    if (!number.empty()) return number;
    return absl::UnavailableError(
        absl::StrCat("sbatch printed no number: ", ShortError(end.output)));
  }
  const absl::Status error = ErrorOf("sbatch", end);
  if (end.exit->signal != 0 || SbatchMayPass(end.errors)) return error;
  return absl::InvalidArgumentError(error.message());
}

absl::StatusOr<std::vector<ClusterJob>> Slurm::List() {
  NSA_ASSIGN_OR_RETURN(const CommandEnd end,
                       Run(options_.squeue, {"--me", "--states=all", "--noheader",
                                             absl::StrCat("--format=", kSqueueFormat)}));
  if (end.exit->code != 0 || end.exit->signal != 0) return ErrorOf("squeue", end);
  if (end.output.size() >= kPrintedBytes) {
    return absl::UnavailableError("squeue: its listing is longer than 8 MiB");
  }
  return ReadSqueue(end.output);
}

absl::StatusOr<std::optional<ClusterJob>> Slurm::Find(const std::string& number) {
  NSA_ASSIGN_OR_RETURN(const CommandEnd end,
                       Run(options_.sacct, {"--parsable2", "--noheader", "--allocations",
                                            absl::StrCat("--format=", kSacctFormat),
                                            absl::StrCat("--jobs=", number)}));
  if (end.exit->code == 0 && end.exit->signal == 0) return ReadSacct(end.output, number);
  if (absl::StrContains(end.errors, "accounting storage is disabled")) return std::nullopt;
  return ErrorOf("sacct", end);
}

absl::Status Slurm::Cancel(const std::vector<std::string>& numbers) {
  std::vector<std::string> arguments = {"--quiet"};
  arguments.insert(arguments.end(), numbers.begin(), numbers.end());
  NSA_ASSIGN_OR_RETURN(const CommandEnd end, Run(options_.scancel, std::move(arguments)));
  if (end.exit->code == 0 && end.exit->signal == 0) return absl::OkStatus();
  return ErrorOf("scancel", end);
}

}  // namespace nsa::server
