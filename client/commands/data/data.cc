// nsactl data: prepares and inspects the data of a job, by nsa-worker beside this program, on this
// machine; no coordinator is needed.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/data/show_data.h"
#include "client/connect/job_source.h"
#include "client/connect/local/local_worker.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

struct PrepareFlags {
  std::string file, out;
  std::vector<std::string> sets;
};

// prepared/NAME, after the job file.
std::string OutOf(const PrepareFlags& flags) {
  if (!flags.out.empty()) return flags.out;
  const std::string stem = flags.file == "-" ? "job" : fs::path(flags.file).stem().string();
  return (fs::path("prepared") / stem).string();
}

absl::StatusOr<ExitCode> Prepare(Session& session, const PrepareFlags& flags) {
  NSA_ASSIGN_OR_RETURN(const JobFile job, LoadJobSource(flags.file, flags.sets));
  NSA_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Make());
  const fs::path file = scratch.path() / "job.yaml";
  NSA_RETURN_IF_ERROR(WriteFileAtomically(file, ToYaml(job.spec)));
  const auto tell = [&](const std::string& line) { session.Note(CleanLine(line)); };
  v1::PreparedData prepared;
  NSA_RETURN_IF_ERROR(AskWorker(WorkerBesideThisProgram(),
                                {"--job", file.string(), "--prepare-data", OutOf(flags)},
                                &session.interrupt(), &prepared, tell));
  if (session.PrintDocumentOrName(prepared, prepared.folder())) return ExitCode::kOk;
  session.PrintTable(PreparedTable(prepared));
  session.Note(absl::StrCat("train on it: nsactl submit ", prepared.job_file()));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> Inspect(Session& session, const std::vector<std::string>& what) {
  std::vector<std::string> words = {"--inspect-data"};
  words.insert(words.end(), what.begin(), what.end());
  v1::DataInspection inspection;
  NSA_RETURN_IF_ERROR(
      AskWorker(WorkerBesideThisProgram(), words, &session.interrupt(), &inspection));
  if (session.structured()) {
    session.PrintDocument(inspection);
  } else {
    session.out() << InspectionText(inspection);
  }
  return ExitCode::kOk;
}

}  // namespace

void AddData(Cli* cli) {
  Options group =
      cli->Add({.name = "data",
                .what = "Prepare and inspect training data",
                .group = "Jobs",
                .more = "Both read on this machine, by nsa-worker beside this program, and need no "
                        "coordinator.",
                .examples = "nsactl data prepare job.yaml --out ./tokens\n"
                            "nsactl data inspect job.yaml"});
  const auto prepare = std::make_shared<PrepareFlags>();
  Options prepares = cli->Add(
      {.name = "prepare",
       .what = "Tokenize the data of a job once, for training to map into memory",
       .more =
           "Writes the tokens of every set of files as a folder of DIR, and DIR/job.yaml, which "
           "trains on them: the same\nrows and losses as on the files, but it starts at once, "
           "and ranks share the memory. DIR appears when all of it is\nthere; a DIR of an "
           "earlier 'data prepare' is replaced.",
       .examples = "nsactl data prepare job.yaml\n"
                   "nsactl data prepare job.yaml --out ./tokens\n"
                   "nsactl submit ./tokens/job.yaml",
       .run = [prepare](Session& session) { return Prepare(session, *prepare); },
       .parent = &group});
  prepares.Argument("FILE", &prepare->file, "Job file; - reads standard input");
  prepares.Text("--out", "DIR", &prepare->out,
                "Folder to write; new, empty or of an earlier 'data prepare' (default: "
                "prepared/NAME, after the job file)");
  prepares.Texts("--set", "FIELD=VALUE", &prepare->sets,
                 "Change a field of the file; may be repeated");
  const auto what = std::make_shared<std::vector<std::string>>();
  Options inspects = cli->Add(
      {.name = "inspect",
       .what = "Show documents, lengths, tokens, copies and a sample of data",
       .more = "WHAT is a job file (its name ends in .yaml), a data file, or a folder of 'data "
               "prepare'. Everything is read. Texts\nare tokenized only for a job file, which "
               "names the tokenizer.",
       .examples = "nsactl data inspect job.yaml\n"
                   "nsactl data inspect train.jsonl.zst val.parquet\n"
                   "nsactl data inspect ./tokens -o json",
       .run = [what](Session& session) { return Inspect(session, *what); },
       .parent = &group});
  inspects.Argument("WHAT", what.get(), "Job files, data files or prepared folders");
}

}  // namespace nsa::client
