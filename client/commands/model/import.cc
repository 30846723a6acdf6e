// nsactl import: the folder of a model as a checkpoint. Works on files of this machine; a
// coordinator is asked only for the out_dir of a job. What is on the Hugging Face Hub is fetched by
// nsa-worker beside this program.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli.h"
#include "client/commands/model/find_model.h"
#include "client/connect/job_source.h"
#include "client/connect/local/local_worker.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/export/export.h"
#include "common/job/data/url.h"
#include "common/run/new_folder.h"
#include "google/protobuf/struct.pb.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

struct ImportFlags {
  std::string source, checkpoint, attention = "full", layers;
  std::vector<std::string> sets;
};

// The keys of nsa that the flags set.
absl::StatusOr<v1::NsaSpec> SparseOf(const ImportFlags& flags) {
  v1::JobSpec spec;
  if (!flags.layers.empty()) {
    const bool list = flags.layers.starts_with('[');
    NSA_RETURN_IF_ERROR(Annotate(
        ApplySet(
            absl::StrCat("nsa.layers=", list ? flags.layers : absl::StrCat("[", flags.layers, "]")),
            &spec)
            .status(),
        "--layers"));
  }
  for (const std::string& assignment : flags.sets) {
    if (!absl::StartsWith(assignment, "nsa.")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--set: ", assignment, " (keys of nsa); set the others in the job that trains on"));
    }
    NSA_RETURN_IF_ERROR(ApplySet(assignment, &spec).status());
  }
  return spec.nsa();
}

absl::StatusOr<ImportOptions> ImportOptionsOf(const ImportFlags& flags) {
  if (flags.attention == "nsa") {
    NSA_ASSIGN_OR_RETURN(v1::NsaSpec sparse, SparseOf(flags));
    return ImportOptions{.sparse = std::move(sparse)};
  }
  if (flags.attention != "full") {
    return absl::InvalidArgumentError(
        absl::StrCat("--attention: ", flags.attention, " (must be full or nsa); name one of them"));
  }
  if (flags.layers.empty() && flags.sets.empty()) return ImportOptions();
  return absl::InvalidArgumentError(
      absl::StrCat(flags.layers.empty() ? "--set" : "--layers",
                   ": given with --attention full (of sparse attention); add --attention nsa"));
}

// The folder of DIR. A model that is converted may also be that of a job.
absl::StatusOr<std::string> SourceOf(Session& session, const ImportFlags& flags, bool converted) {
  std::error_code error;
  if (!converted || std::filesystem::is_directory(flags.source, error)) return flags.source;
  return FindModel(session, flags.source);
}

struct Imported {
  ImportResult result;
  std::string commit;  // of a model of the Hub; empty: it is none, or the Hub does not know it
};

// Has nsa-worker fetch a part of a model of the Hub into `folder`, and returns the commit.
absl::StatusOr<std::string> FetchPart(Session& session, const std::string& url,
                                      const std::filesystem::path& folder, bool weights) {
  const auto tell = [&](const std::string& line) { session.Note(CleanLine(line)); };
  std::vector<std::string> words = {"fetch-model", url, folder.string()};
  if (weights) words.emplace_back("--weights");
  google::protobuf::Struct answer;
  NSA_RETURN_IF_ERROR(
      AskWorker(WorkerBesideThisProgram(), words, &session.interrupt(), &answer, tell));
  const auto commit = answer.fields().find("commit");
  return commit == answer.fields().end() ? "" : commit->second.string_value();
}

// Fetches a model of the Hub, the only kind of URL, into a folder beside the checkpoint, which is
// removed, and imports that. What can be refused without the weights is refused before they are
// fetched.
absl::StatusOr<Imported> ImportFromHub(Session& session, const ImportFlags& flags,
                                       const ImportOptions& options) {
  NSA_RETURN_IF_ERROR(CheckHubModel(flags.source));
  NSA_ASSIGN_OR_RETURN(const HubPath hub, ParseHubModelUrl(flags.source));
  NSA_ASSIGN_OR_RETURN(const NewFolder fetched, NewFolder::Create(flags.checkpoint));
  const std::filesystem::path& folder = fetched.path();
  const auto named = [&](const absl::Status& status) {  // by what the user knows
    return WithMessage(status,
                       absl::StrReplaceAll(status.message(), {{folder.string(), flags.source}}));
  };
  Imported imported;
  NSA_ASSIGN_OR_RETURN(imported.commit, FetchPart(session, flags.source, folder, false));
  NSA_RETURN_IF_ERROR(named(CheckImport(folder, flags.checkpoint, options)));
  // Both parts are those of one commit.
  const std::string pinned = absl::StrCat("hf://", hub.repository, "@", imported.commit);
  NSA_RETURN_IF_ERROR(
      FetchPart(session, imported.commit.empty() ? flags.source : pinned, folder, true).status());
  absl::StatusOr<ImportResult> result = ImportModel(folder, flags.checkpoint, options);
  NSA_RETURN_IF_ERROR(named(result.status()));
  imported.result = *std::move(result);
  return imported;
}

absl::StatusOr<Imported> ImportFrom(Session& session, const ImportFlags& flags,
                                    const ImportOptions& options) {
  if (IsUrl(flags.source)) return ImportFromHub(session, flags, options);
  Imported imported;
  NSA_ASSIGN_OR_RETURN(const std::string source,
                       SourceOf(session, flags, options.sparse.has_value()));
  NSA_ASSIGN_OR_RETURN(imported.result, ImportModel(source, flags.checkpoint, options));
  return imported;
}

void PrintImported(Session& session, const ImportFlags& flags, const Imported& imported,
                   bool converted) {
  const ImportResult& result = imported.result;
  nlohmann::ordered_json document = {{"checkpoint", flags.checkpoint},
                                     {"step", result.step},
                                     {"parameters", result.parameters},
                                     {"widened", result.widened},
                                     {"training_state", result.training_state},
                                     {"converted", converted},
                                     {"layers", result.layers}};
  if (!imported.commit.empty()) document["commit"] = imported.commit;
  session.PrintDocument(document);
}

absl::StatusOr<ExitCode> Import(Session& session, const ImportFlags& flags) {
  NSA_ASSIGN_OR_RETURN(const ImportOptions options, ImportOptionsOf(flags));
  const bool converted = options.sparse.has_value();
  NSA_ASSIGN_OR_RETURN(const Imported imported, ImportFrom(session, flags, options));
  const ImportResult& result = imported.result;
  if (session.structured()) {
    PrintImported(session, flags, imported, converted);
    return ExitCode::kOk;
  }
  if (session.flags().format == Format::kName) {
    session.out() << flags.checkpoint << "\n";
    return ExitCode::kOk;
  }
  session.out() << flags.checkpoint << ": step " << result.step << ", " << result.parameters
                << " parameters" << (result.widened ? ", widened from 16 bits" : "")
                << ", optimizer at its start\n";
  if (!imported.commit.empty()) {
    session.Note(absl::StrCat(flags.source, " is at commit ", imported.commit));
  }
  if (converted) {
    session.Note(absl::StrCat("layers in turn: ", absl::StrJoin(result.layers, ", "),
                              "; a job that trains on: nsactl init ", flags.checkpoint, " DATA"));
  } else if (!result.training_state) {
    session.Note("no checkpoint_state.json: the job is what config.json says, with defaults");
  }
  return ExitCode::kOk;
}

}  // namespace

void AddImport(Cli* cli) {
  const auto flags = std::make_shared<ImportFlags>();
  Options options = cli->Add(
      {.name = "import",
       .what = "Turn a model's folder, or one of the Hub, into a checkpoint",
       .group = "Models",
       .more =
           "Reads what `nsactl export` wrote, and models of Llama, Qwen2, Qwen3 and Mistral: "
           "config.json, safetensors,\ntokenizer.json. hf://OWNER/NAME[@REVISION] is fetched "
           "from the Hugging Face Hub, with HF_TOKEN if it is private or\ngated. The checkpoint "
           "has the folder's weights in fp32 and the optimizer at its start. A job trains on "
           "from it\nwith restart: {resume: CHECKPOINT}; `nsactl generate`, `chat`, `serve` and "
           "`eval` use it as it is. Needs no coordinator.\n--attention nsa makes a sparse model "
           "of a dense one, which is then trained on: of such a folder, or of a checkpoint\nor "
           "job of ours (docs/convert.md).",
       .examples = "nsactl import ./my-model ./my-model-checkpoint\n"
                   "nsactl import hf://Qwen/Qwen3-0.6B ./qwen\n"
                   "nsactl import ./Qwen3-0.6B ./qwen-sparse --attention nsa\n"
                   "nsactl import ./out ./sparse --attention nsa --layers win,sel --set nsa.w=512\n"
                   "nsactl import ./out ./sparse --attention nsa --layers full,win,sel,win",
       .run = [flags](Session& session) { return Import(session, *flags); }});
  options.Argument("DIR|URL", &flags->source,
                   "A model's folder, with its config.json, or hf://OWNER/NAME[@REVISION]; with "
                   "--attention nsa also a "
                   "checkpoint folder, an out_dir, or a job whose out_dir is on this machine");
  options.Argument("CHECKPOINT", &flags->checkpoint, "Checkpoint folder to write; new or empty");
  options.Text("--attention", "full|nsa", &flags->attention,
               "full leaves the attention as it is (default), nsa makes it sparse");
  options.Text("--layers", "LIST", &flags->layers,
               "Branches of the layers in turn, or full, as nsa.layers (default: win,sel)");
  options.Texts("--set", "nsa.KEY=VALUE", &flags->sets,
                "Another key of nsa for --attention nsa; may be repeated");
}

}  // namespace nsa::client
