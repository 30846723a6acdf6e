#include "worker/train/needle/commands.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/output_file.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/random.h"
#include "worker/train/needle/task.h"
#include "worker/train/score/trained_model.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMostFillerBytes = 256 << 20;

absl::StatusOr<Filler> LoadFiller(const std::string& path) {
  if (path.empty()) return Filler();
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (!error && bytes > kMostFillerBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes (at most %d); give a part of it", path, bytes, kMostFillerBytes));
  }
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadWholeFileOrPipe(path));
  absl::StatusOr<Filler> filler = Filler::FromText(text);
  if (filler.ok()) return filler;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", filler.status().message()));
}

absl::Status CheckDocuments(const NeedleDocuments& options) {
  if (options.documents < 1 || options.documents > kMostNeedleDocuments) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "documents: %d (from 1 to %d); choose a number", options.documents, kMostNeedleDocuments));
  }
  const auto least = static_cast<int64_t>(LeastBytes(options.task));
  if (options.bytes >= least && options.bytes <= kMostNeedleBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("bytes of a document: %d (from %d to %d for the task %s); choose a number",
                      options.bytes, least, kMostNeedleBytes, NameOf(options.task)));
}

std::string LineOf(const Filler& filler, const NeedleDocuments& options, int64_t index) {
  const uint64_t seed = Mix(static_cast<uint64_t>(options.seed), static_cast<uint64_t>(index));
  const TaskDocument document = MakeTaskDocument(
      options.task, filler, static_cast<size_t>(options.bytes), Unit(Mix(seed, 1)), seed);
  return nlohmann::json{{"text", document.prompt + document.answer}}.dump() + "\n";
}

}  // namespace

absl::Status NeedleCommand(const std::string& checkpoint, Backend backend,
                           const std::string& filler, const NeedleOptions& options,
                           const NeedleFiles& files) {
  NSA_ASSIGN_OR_RETURN(const Filler words, LoadFiller(filler));
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<TrainedModel> trained,
                       TrainedModel::Load(checkpoint, backend));
  std::FILE* const progress = files.json.empty() ? stdout : stderr;
  int32_t length = 0, found = 0, trials = 0;
  const auto tell = [&] {
    if (trials > 0) {
      absl::FPrintF(progress, "%d tokens: %d of %d answers found\n", length, found, trials);
    }
    std::fflush(progress);
    found = trials = 0;
  };
  NSA_ASSIGN_OR_RETURN(const std::vector<NeedleCell> cells,
                       MeasureNeedles(*trained, words, options, [&](const NeedleCell& cell) {
                         if (cell.length != length) tell();
                         length = cell.length;
                         found += cell.found;
                         trials += cell.trials;
                       }));
  tell();
  const int64_t step = trained->state().step();
  if (!files.csv.empty()) {
    NSA_RETURN_IF_ERROR(WriteOutputFile(files.csv, NeedleCsv(cells, options.task)));
  }
  if (!files.json.empty()) {
    return WriteOutputFile(files.json, NeedleDocument(cells, options.task, step).dump() + "\n");
  }
  absl::PrintF("\nstep %d, task %s: share of answers found by depth and tokens of the context\n%s",
               step, NameOf(options.task), NeedleTable(cells));
  return FlushStandardOutput();
}

absl::Status WriteNeedles(const std::string& path, const NeedleDocuments& options) {
  NSA_RETURN_IF_ERROR(CheckDocuments(options));
  NSA_ASSIGN_OR_RETURN(const Filler filler, LoadFiller(options.filler));
  NSA_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  for (int64_t i = 0; i < options.documents; ++i) {
    NSA_RETURN_IF_ERROR(file.Append(LineOf(filler, options, i)));
  }
  return file.Publish();
}

}  // namespace nsa::train
