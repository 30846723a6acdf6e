// Exports a checkpoint as a folder that other programs can load, and imports such a folder again.
// docs/formats.md lists its files. Files only: no model is computed and none is held in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/export/tensor_stream.h"
#include "nsa/v1/model.pb.h"

namespace nsa {

struct ExportOptions {
  TensorType type = TensorType::kF32;
  std::filesystem::path tokenizer;       // folder of vocab.json and merges.txt; empty: the job's
  int64_t largest_file = 5'000'000'000;  // bytes of tensors in one file, if there are several
};

struct ExportResult {
  std::filesystem::path checkpoint;  // the one that was exported
  int64_t step = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;  // of the tensors
  int32_t files = 0;  // with tensors
  bool has_tokenizer = false;
  // The architecture of another family that the model is, e.g. LlamaForCausalLM; else empty.
  std::string architecture;
};

// Writes `folder`, which must not exist or be empty: a model without sparse layers as the plain
// architecture that it is (foreign_model.h), any other with code of its own. It is written under
// another name, synced and renamed, so that it is whole when it is there. `checkpoint` is a
// checkpoint folder, a link to one or an out_dir, whose newest valid checkpoint is taken; its files
// are verified first. NotFound, DataLoss, FailedPrecondition (the folder is not empty; the
// checkpoint's tensors are not those of its job), ResourceExhausted.
absl::StatusOr<ExportResult> ExportModel(const std::filesystem::path& checkpoint,
                                         const std::filesystem::path& folder,
                                         const ExportOptions& options = {});

struct ImportOptions {
  // Converts a dense model to this attention (conversion.h); nothing: it stays as it is.
  std::optional<v1::NsaSpec> sparse;
};

// The index of a model whose tensors are in several files.
inline constexpr char kWeightIndexFile[] = "model.safetensors.index.json";

// The names of the files in a model's folder that have its tensors: those of its index, or
// model.safetensors alone. InvalidArgument when the index names something else than files of the
// folder that end in .safetensors.
absl::StatusOr<std::set<std::string>> WeightFiles(const std::filesystem::path& folder);

struct ImportResult {
  int64_t step = 0;
  int64_t parameters = 0;
  bool widened = false;         // tensors were bf16 or fp16
  bool training_state = false;  // the job is a stored one: the folder had a checkpoint_state.json
  std::vector<std::string> layers;  // branches of the layers in turn, "cmp+sel"
};

// Writes the checkpoint folder `checkpoint`, which must not exist or be empty, from an exported
// folder or that of a model of another family (foreign_model.h): fp32 weights, and moments of 0. If
// the job's own tokenizer is not there, its tokenizer.json, with the chat template, is copied into
// the checkpoint, and becomes data.tokenizer_path.
// Without a checkpoint_state.json its job is what config.json says, with defaults, at step 0. A
// model that is converted may also be that of a checkpoint, as ExportModel() finds it; it begins at
// step 0. Nothing is left behind after an error. NotFound, InvalidArgument, DataLoss,
// FailedPrecondition (a tensor is missing, too many or of another shape), ResourceExhausted.
absl::StatusOr<ImportResult> ImportModel(const std::filesystem::path& folder,
                                         const std::filesystem::path& checkpoint,
                                         const ImportOptions& options = {});

// The errors of ImportModel() that do not come from the weights, which need not be there.
absl::Status CheckImport(const std::filesystem::path& folder,
                         const std::filesystem::path& checkpoint, const ImportOptions& options);

}  // namespace nsa
