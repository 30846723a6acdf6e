// nsactl export: a checkpoint as a folder that transformers and PyTorch load. Works on files of
// this machine; a coordinator is asked only for the out_dir of a job.
#include "common/export/export.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "client/cli.h"
#include "client/commands/model/find_model.h"
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
// Ctrl-C ends it too, and leaves neither the folder nor anything in the store.
absl::StatusOr<ExportResult> ExportToStore(Session& session, const std::string& model,
                                           const std::string& url, const ExportOptions& options) {
  NSA_ASSIGN_OR_RETURN(const S3Path to, ParseS3Url(url, /*folder=*/true));
  NSA_ASSIGN_OR_RETURN(S3Access access, S3AccessFromEnvironment());
  std::error_code none;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(none);
  if (none) return absl::ErrnoToStatus(none.value(), "TMPDIR: no folder for the export; set it");
  std::string made = (folder / "nsa-export-XXXXXX").string();
  if (mkdtemp(made.data()) == nullptr) return absl::ErrnoToStatus(errno, made);
  std::atomic<bool> cancelled{false};
  const std::atomic<bool> never{false};
  const Interrupt::Scope scope(&session.interrupt(), [&] { cancelled = true; });
  S3 s3({.access = access, .proxy = true}, &cancelled);
  S3 undo({.access = std::move(access), .proxy = true, .patience = absl::Seconds(10)}, &never);
  absl::StatusOr<ExportResult> result = ExportModel(model, made, options);
  if (result.ok()) {
    if (const absl::Status sent = UploadFolder(made, to, &s3, &undo); !sent.ok()) result = sent;
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
  NSA_ASSIGN_OR_RETURN(const ExportResult result,
                       IsUrl(flags.folder) ? ExportToStore(session, model, flags.folder, options)
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

}  // namespace

void AddExport(Cli* cli) {
  const auto flags = std::make_shared<ExportFlags>();
  Options options = cli->Add(
      {.name = "export",
       .what = "Write a checkpoint as a folder that other programs load",
       .group = "Models",
       .more =
           "Writes config.json, model.safetensors (several files above 5 GB), the tokenizer, "
           "modeling_nsa.py in plain PyTorch and a\nmodel card. transformers loads it with "
           "trust_remote_code=True; the model card shows both ways, and says what does\nnot run it "
           "(vLLM, GGUF). A model without sparse layers that is a Llama, Qwen2, Qwen3 or Mistral "
           "model is written as\none, without code. s3://BUCKET/FOLDER uploads it, with your own "
           "credentials of AWS's tools; the folder is made in\nTMPDIR first.",
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

}  // namespace nsa::client
