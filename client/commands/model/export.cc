// nsactl export and import: a checkpoint as a folder that transformers and PyTorch load, and back.
// Work on files of this machine; a coordinator is asked only for the out_dir of a job.
#include "common/export/export.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/commands/model/find_model.h"
#include "client/connect/job_source.h"
#include "client/connect/local/input_file.h"
#include "client/show/human.h"
#include "common/base/status.h"
#include "common/job/data/url.h"
#include "common/s3/upload_folder.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

struct ExportFlags {
  std::string target, folder, tokenizer;
  bool bf16 = false;
};

// Exports into a folder in TMPDIR, which is removed, and uploads that.
absl::StatusOr<ExportResult> ExportToStore(const std::string& model, const std::string& url,
                                           const ExportOptions& options) {
  NSA_ASSIGN_OR_RETURN(const S3Path to, ParseS3Url(url, /*folder=*/true));
  NSA_ASSIGN_OR_RETURN(S3Access access, S3AccessFromEnvironment());
  std::string made = (std::filesystem::temp_directory_path() / "nsa-export-XXXXXX").string();
  if (mkdtemp(made.data()) == nullptr) return absl::ErrnoToStatus(errno, made);
  const std::atomic<bool> cancelled{false};
  S3 s3({.access = std::move(access), .proxy = true}, &cancelled);
  absl::StatusOr<ExportResult> result = ExportModel(model, made, options);
  if (result.ok()) {
    if (const absl::Status sent = UploadFolder(made, to, &s3); !sent.ok()) result = sent;
  }
  std::error_code ignored;
  std::filesystem::remove_all(made, ignored);
  return result;
}

absl::StatusOr<ExitCode> Export(Session& session, const ExportFlags& flags) {
  ExportOptions options;
  if (flags.bf16) options.type = TensorType::kBf16;
  options.tokenizer = flags.tokenizer;
  if (!flags.tokenizer.empty()) {
    NSA_RETURN_IF_ERROR(CheckReadable("--tokenizer", flags.tokenizer, "a folder or file"));
  }
  NSA_ASSIGN_OR_RETURN(const std::string model, FindModel(session, flags.target));
  NSA_ASSIGN_OR_RETURN(const ExportResult result, IsUrl(flags.folder)
                                                      ? ExportToStore(model, flags.folder, options)
                                                      : ExportModel(model, flags.folder, options));
  if (session.structured()) {
    session.PrintDocument(nlohmann::ordered_json{{"folder", flags.folder},
                                                 {"checkpoint", result.checkpoint.string()},
                                                 {"step", result.step},
                                                 {"parameters", result.parameters},
                                                 {"bytes", result.bytes},
                                                 {"files", result.files},
                                                 {"architecture", result.architecture},
                                                 {"tokenizer", result.has_tokenizer}});
    return ExitCode::kOk;
  }
  if (session.flags().format == Format::kName) {
    session.out() << flags.folder << "\n";
    return ExitCode::kOk;
  }
  session.out() << flags.folder << ": step " << result.step << " of " << result.checkpoint.string()
                << ", " << result.parameters << " parameters in " << (flags.bf16 ? "bf16" : "fp32")
                << ", " << HumanBytes(result.bytes)
                << (result.architecture.empty() ? "" : ", as " + result.architecture) << "\n";
  if (!result.has_tokenizer) {
    session.Note("no tokenizer files: the job's token files name no tokenizer");
  }
  return ExitCode::kOk;
}

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
        absl::StrCat("--attention: ", flags.attention, " (full or nsa); name one of them"));
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

absl::StatusOr<ExitCode> Import(Session& session, const ImportFlags& flags) {
  NSA_ASSIGN_OR_RETURN(const ImportOptions options, ImportOptionsOf(flags));
  const bool converted = options.sparse.has_value();
  NSA_ASSIGN_OR_RETURN(const std::string source, SourceOf(session, flags, converted));
  NSA_ASSIGN_OR_RETURN(const ImportResult result, ImportModel(source, flags.checkpoint, options));
  if (session.structured()) {
    session.PrintDocument(nlohmann::ordered_json{{"checkpoint", flags.checkpoint},
                                                 {"step", result.step},
                                                 {"parameters", result.parameters},
                                                 {"widened", result.widened},
                                                 {"training_state", result.training_state},
                                                 {"converted", converted},
                                                 {"layers", result.layers}});
    return ExitCode::kOk;
  }
  if (session.flags().format == Format::kName) {
    session.out() << flags.checkpoint << "\n";
    return ExitCode::kOk;
  }
  session.out() << flags.checkpoint << ": step " << result.step << ", " << result.parameters
                << " parameters" << (result.widened ? ", widened from 16 bits" : "")
                << ", optimizer at its start\n";
  if (converted) {
    session.Note(absl::StrCat("layers in turn: ", absl::StrJoin(result.layers, ", "),
                              "; a job that trains on: nsactl init ", flags.checkpoint, " DATA"));
  } else if (!result.training_state) {
    session.Note("no checkpoint_state.json: the job is what config.json says, with defaults");
  }
  return ExitCode::kOk;
}

}  // namespace

void AddExport(Cli* cli) {
  const auto flags = std::make_shared<ExportFlags>();
  Options options = cli->Add(
      {.name = "export",
       .what = "Write a checkpoint as a folder that other programs load",
       .group = "Models",
       .more =
           "Writes config.json, model.safetensors (several files above 5 GB), the tokenizer, "
           "modeling_nsa.py in plain PyTorch and a model card. transformers loads it with "
           "trust_remote_code=True; the model card shows both ways, and says what does not "
           "run it (vLLM, GGUF). A model without sparse layers that is a Llama, Qwen2, Qwen3 or "
           "Mistral model is written as one, without code. s3://BUCKET/FOLDER uploads it, with "
           "your own credentials of AWS's "
           "tools; the folder is made in TMPDIR first.",
       .examples = "nsactl export my-job ./my-model\n"
                   "nsactl export ./out ./my-model\n"
                   "nsactl export my-job s3://my-bucket/models/my-model\n"
                   "nsactl export ./out/checkpoints/step-00005000 ./my-model --bf16",
       .run = [flags](Session& session) { return Export(session, *flags); }});
  options.Argument("CHECKPOINT|JOB", &flags->target, kModelArgument);
  options.Argument("DIR", &flags->folder, "Folder to write, or s3://BUCKET/FOLDER; new or empty");
  options.Flag("--bf16", &flags->bf16, "Round the weights to bf16 (default: fp32, bit by bit)");
  options.Text(
      "--tokenizer", "FOLDER", &flags->tokenizer,
      "Folder of GPT-2's vocab.json and merges.txt, or a tokenizer.json (default: the job's "
      "data.tokenizer_path)");
}

void AddImport(Cli* cli) {
  const auto flags = std::make_shared<ImportFlags>();
  Options options = cli->Add(
      {.name = "import",
       .what = "Turn a model's folder into a checkpoint",
       .group = "Models",
       .more = "Reads what 'nsactl export' wrote, and models of Llama, Qwen2, Qwen3 and Mistral: "
               "config.json, safetensors, tokenizer.json. The checkpoint has the folder's weights "
               "in fp32 and the optimizer at its start. A job trains on from it with restart: "
               "{resume: CHECKPOINT}; nsa-worker scores and samples it. Needs no coordinator.\n"
               "--attention nsa makes a sparse model of a dense one, which is then trained on: of "
               "such a folder, or of a checkpoint or job of ours (docs/convert.md).",
       .examples = "nsactl import ./my-model ./my-model-checkpoint\n"
                   "nsactl import ./Qwen3-0.6B ./qwen-sparse --attention nsa\n"
                   "nsactl import ./out ./sparse --attention nsa --layers win,sel --set nsa.w=512",
       .run = [flags](Session& session) { return Import(session, *flags); }});
  options.Argument("DIR", &flags->source,
                   "A model's folder, with its config.json; with --attention nsa also a "
                   "checkpoint folder, an out_dir, or a job whose out_dir is on this machine");
  options.Argument("CHECKPOINT", &flags->checkpoint, "Checkpoint folder to write; new or empty");
  options.Text("--attention", "full|nsa", &flags->attention,
               "full leaves the attention as it is (default), nsa makes it sparse");
  options.Text("--layers", "LIST", &flags->layers,
               "Branches of the layers in turn, as nsa.layers (default: win,sel)");
  options.Texts("--set", "nsa.KEY=VALUE", &flags->sets,
                "Another key of nsa for --attention nsa; may be repeated");
}

}  // namespace nsa::client
