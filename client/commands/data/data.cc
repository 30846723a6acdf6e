// nsactl data: prepares and inspects the data of a job, and makes data for `nsactl needle`, by
// nsa-worker beside this program, on this machine; no coordinator is needed.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/data/show_data.h"
#include "client/commands/model/needle_text.h"
#include "client/commands/model/run_program.h"
#include "client/connect/job_source.h"
#include "client/connect/local/data_folder.h"
#include "client/connect/local/input_file.h"
#include "client/connect/local/local_worker.h"
#include "client/connect/local/output_file.h"
#include "client/show/shell_word.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data/prepared.h"
#include "common/job/data/url.h"
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
  NSA_RETURN_IF_ERROR(AskWorker(WorkerBesideThisProgram(), {"prepare", file.string(), OutOf(flags)},
                                &session.interrupt(), &prepared, tell));
  for (const v1::PreparedSet& set : prepared.sets()) {
    for (const v1::DataWarning& warning : set.warnings()) {
      session.Note(absl::StrCat("warning: ", CleanLine(WarningText(warning))));
    }
  }
  if (session.PrintDocumentOrName(prepared, prepared.folder())) return ExitCode::kOk;
  session.PrintTable(PreparedTable(prepared));
  session.Note(absl::StrCat("train on it: nsactl submit ", ShellWord(prepared.job_file())));
  return ExitCode::kOk;
}

// What the worker shall inspect of WHAT: of a folder that nobody prepared the files of each kind.
absl::StatusOr<std::vector<std::string>> ThingsToInspect(Session& session,
                                                         const std::string& what) {
  std::error_code error;
  const fs::path path(what);
  if (IsUrl(what)) {
    return absl::InvalidArgumentError(
        absl::StrCat("WHAT: ", what,
                     " (a URL; must be a file of this machine); name it in data.path of a job "
                     "file, and inspect that"));
  }
  if (!fs::is_directory(path, error)) {
    const bool pattern = IsPattern(what) && !fs::exists(path, error);
    NSA_RETURN_IF_ERROR(pattern ? FilesOfWord(what).status() : CheckInputFile("WHAT", what));
    return std::vector{what};
  }
  const auto has = [&](const char* name) { return fs::exists(path / name, error); };
  if (has(kPreparedManifest) || has(kPreparedJob)) return std::vector{what};
  NSA_ASSIGN_OR_RETURN(const DataFolder folder, LookAtFolder(path));
  if (!folder.left_out.empty()) session.Note(folder.left_out);
  return folder.patterns;
}

absl::StatusOr<ExitCode> Inspect(Session& session, const std::vector<std::string>& what) {
  std::vector<std::string> words = {"inspect"};
  for (const std::string& each : what) {
    NSA_ASSIGN_OR_RETURN(const std::vector<std::string> things, ThingsToInspect(session, each));
    words.insert(words.end(), things.begin(), things.end());
  }
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

struct WriteNeedlesFlags {
  std::string out = "needle.jsonl";
  int64_t documents = 10'000, bytes = 2'047;
  NeedleText text;
};

absl::StatusOr<ExitCode> WriteNeedles(Session& session, const WriteNeedlesFlags& flags) {
  NSA_RETURN_IF_ERROR(RefuseStructured(session, "data needle"));
  NSA_RETURN_IF_ERROR(CheckOutputFile("--out", flags.out));
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> text, NeedleTextWords(flags.text));
  std::vector<std::string> words = {"write-needles", flags.out,
                                    absl::StrCat("--documents=", flags.documents),
                                    absl::StrCat("--document-bytes=", flags.bytes)};
  words.insert(words.end(), text.begin(), text.end());
  return RunWorkerInForeground(session, words);
}

void AddPrepare(Cli* cli, const Options* group) {
  const auto prepare = std::make_shared<PrepareFlags>();
  Options prepares = cli->Add(
      {.name = "prepare",
       .what = "Tokenize the data of a job once, for training to map into memory",
       .more =
           "Writes the tokens of every set of files as a folder of DIR, and DIR/job.yaml, which "
           "trains on them: the same\nrows and losses as on the files, but it starts at once, "
           "and ranks share the memory. DIR appears when all of it is\nthere; a DIR of an "
           "earlier `data prepare` is replaced. DIR can be moved. The out_dir of DIR/job.yaml is "
           "that of\nthe job with -prepared at the end.",
       .examples = "nsactl data prepare job.yaml\n"
                   "nsactl data prepare job.yaml --out ./tokens\n"
                   "nsactl submit ./tokens/job.yaml",
       .run = [prepare](Session& session) { return Prepare(session, *prepare); },
       .parent = group});
  prepares.Argument("FILE", &prepare->file, "Job file; - reads standard input");
  prepares.Text("--out", "DIR", &prepare->out,
                "Folder to write; new, empty or of an earlier `data prepare` (default: "
                "prepared/NAME, after the job file)");
  prepares.Texts("--set", "FIELD=VALUE", &prepare->sets,
                 "Change a field of the file; may be repeated");
}

void AddInspect(Cli* cli, const Options* group) {
  const auto what = std::make_shared<std::vector<std::string>>();
  Options inspects = cli->Add(
      {.name = "inspect",
       .what = "Show documents, lengths, tokens, copies and a sample of data",
       .more = "WHAT is a job file (its name ends in .yaml), a data file, a pattern in quotes, a "
               "folder of data files, or one of\n`data prepare`. Everything is read; of a folder "
               "the files directly in it, those of one kind together. Texts are\ntokenized only "
               "for a job file, which names the tokenizer.",
       .examples = "nsactl data inspect job.yaml\n"
                   "nsactl data inspect train.jsonl.zst val.parquet\n"
                   "nsactl data inspect ./books 'notes/*.txt'\n"
                   "nsactl data inspect ./tokens -o json",
       .run = [what](Session& session) { return Inspect(session, *what); },
       .parent = group});
  inspects.Argument("WHAT", what.get(), "Job files, data files, patterns or folders");
}

void AddNeedleData(Cli* cli, const Options* group) {
  const auto needle = std::make_shared<WriteNeedlesFlags>();
  Options needles = cli->Add(
      {.name = "needle",
       .what = "Write documents that hide something and ask for it, to train on",
       .more = "Writes JSON lines. Each document has a pass key of five digits, or what --task "
               "says, somewhere in irrelevant text\nand ends with the question and the answer. "
               "`nsactl needle` measures what a model has learned of it.",
       .examples = "nsactl data needle --out needle.jsonl --documents 20000 --bytes 2047\n"
                   "nsactl data needle --bytes 8191 --filler book.txt --task values",
       .run = [needle](Session& session) { return WriteNeedles(session, *needle); },
       .parent = group});
  needles.Text("--out", "FILE", &needle->out, "File to write (default: needle.jsonl)");
  needles.Number("--documents", &needle->documents, {.least = 1, .most = 100'000'000},
                 "How many (default: 10000)");
  needles.Number("--bytes", &needle->bytes, {.least = 128, .most = 16 << 20},
                 "Bytes of each, from 255 on where --task is not key; with the byte tokenizer and "
                 "train.seq_len - 1, a row has exactly one document in the first epoch (default: "
                 "2047)");
  AddNeedleText(&needles, &needle->text);
}

}  // namespace

void AddData(Cli* cli) {
  const Options group =
      cli->Add({.name = "data",
                .what = "Prepare, inspect and make training data",
                .group = "Jobs",
                .more = "All work on this machine, by nsa-worker beside this program, and need no "
                        "coordinator.",
                .examples = "nsactl data prepare job.yaml --out ./tokens\n"
                            "nsactl data inspect job.yaml\n"
                            "nsactl data needle --documents 20000"});
  AddPrepare(cli, &group);
  AddInspect(cli, &group);
  AddNeedleData(cli, &group);
}

}  // namespace nsa::client
