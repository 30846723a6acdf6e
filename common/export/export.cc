#include "common/export/export.h"

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/safetensors_file.h"
#include "common/export/checkpoint_model.h"
#include "common/export/foreign_model.h"
#include "common/export/model_card.h"
#include "common/export/model_config_json.h"
#include "common/export/model_tensors.h"
#include "common/export/python_files.h"
#include "common/export/tokenizer_json.h"
#include "common/run/new_folder.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

namespace fs = std::filesystem;

// The tensors of one file, in order.
using Shard = std::vector<ModelTensor>;

// Fills files up to `largest` bytes; a larger tensor has a file of its own.
std::vector<Shard> DivideTensors(const std::vector<ModelTensor>& tensors, TensorType type,
                                 int64_t largest) {
  std::vector<Shard> shards(1);
  int64_t bytes = 0;
  for (const ModelTensor& tensor : tensors) {
    const int64_t more = tensor.size * BytesOf(type);
    if (!shards.back().empty() && bytes + more > largest) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += more;
  }
  return shards;
}

absl::Status CheckTensors(const SafetensorsFile& file, const std::vector<ModelTensor>& wanted) {
  for (const ModelTensor& tensor : wanted) {
    const auto found = file.tensors().find(tensor.name);
    if (found != file.tensors().end() && found->second.shape == tensor.shape) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s: tensor %s is [%s] (the job's is [%s]); the checkpoint is of another model", kModelFile,
        tensor.name,
        found == file.tensors().end() ? "absent" : absl::StrJoin(found->second.shape, ", "),
        absl::StrJoin(tensor.shape, ", ")));
  }
  if (file.tensors().size() == wanted.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: %d tensors (the job's model has %d); the checkpoint is of another model",
                      kModelFile, file.tensors().size(), wanted.size()));
}

// What a tensor is called in the folder, and how its rows are reordered.
TensorSource PlaceOf(const std::optional<PlainModel>& plain, const ModelTensor& tensor) {
  return plain.has_value() ? plain->sources.at(tensor.name) : TensorSource{tensor.name};
}

absl::Status WriteShard(const SafetensorsFile& from, const Shard& shard,
                        const std::optional<PlainModel>& plain, TensorType type,
                        const fs::path& path) {
  std::vector<TensorHeader> headers;
  for (const ModelTensor& tensor : shard) {
    headers.push_back({PlaceOf(plain, tensor).name, tensor.shape, tensor.size});
  }
  NSA_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  NSA_RETURN_IF_ERROR(file.Append(SafetensorsHeader(headers, type, {{"format", "pt"}})));
  for (const ModelTensor& tensor : shard) {
    const SafetensorsFile::Tensor& stored = from.tensors().at(tensor.name);
    const HeadOrder order = {.width = PlaceOf(plain, tensor).heads, .to_pairs = false};
    NSA_RETURN_IF_ERROR(order.width == 0 ? AppendTensor(from, stored, type, &file)
                                         : AppendHeads(from, stored, order, type, &file));
  }
  return file.Finish();
}

// Writes all tensors, in one file or in several with an index.
absl::Status WriteTensors(const fs::path& checkpoint, const std::vector<ModelTensor>& tensors,
                          const std::optional<PlainModel>& plain, const ExportOptions& options,
                          const fs::path& folder, ExportResult* result) {
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> from,
                       SafetensorsFile::Open(checkpoint / kModelFile));
  NSA_RETURN_IF_ERROR(CheckTensors(*from, tensors));
  const std::vector<Shard> shards = DivideTensors(tensors, options.type, options.largest_file);
  nlohmann::ordered_json index;
  for (const ModelTensor& tensor : tensors) result->parameters += tensor.size;
  result->bytes = result->parameters * BytesOf(options.type);
  result->files = static_cast<int32_t>(shards.size());
  index["metadata"] = {{"total_size", result->bytes}};
  std::map<std::string, std::string> places;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? kModelFile
                                                : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                                                  i + 1, shards.size());
    NSA_RETURN_IF_ERROR(WriteShard(*from, shards[i], plain, options.type, folder / name));
    for (const ModelTensor& tensor : shards[i]) places[PlaceOf(plain, tensor).name] = name;
  }
  if (shards.size() == 1) return absl::OkStatus();
  index["weight_map"] = places;
  return WriteNewFile(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

// The state without what belongs to the checkpoint's own files.
absl::StatusOr<std::string> StateText(v1::CheckpointState state) {
  state.clear_files();
  state.clear_world_size();
  return SerializeCheckpointState(state);
}

absl::Status WriteTexts(const v1::CheckpointState& state, const ExportedTokenizer& tokenizer,
                        const std::optional<PlainModel>& plain, const ExportOptions& options,
                        const ExportResult& result, const fs::path& folder) {
  const bool bf16 = options.type == TensorType::kBf16;
  const nlohmann::ordered_json config =
      plain.has_value() ? plain->config : ModelConfigJson(state.spec(), bf16, tokenizer.ids);
  nlohmann::ordered_json generation = {{"use_cache", true}};
  generation.update(SpecialTokensJson(tokenizer.ids));
  if (tokenizer.turn_end >= 0) {
    generation["eos_token_id"] = {tokenizer.turn_end, tokenizer.ids.end};
  }
  const fs::path parent = result.checkpoint.parent_path();
  const ModelCardFacts facts = {
      .bf16 = bf16,
      .has_tokenizer = result.has_tokenizer,
      .architecture = result.architecture,
      .parameters = result.parameters,
      .out_dir = parent.filename() == "checkpoints" ? parent.parent_path() : fs::path()};
  std::map<std::string, std::string> files = tokenizer.files;
  files["config.json"] = config.dump(2) + "\n";
  files["generation_config.json"] = generation.dump(2) + "\n";
  if (!plain.has_value()) {
    files["configuration_nsa.py"] = std::string(kConfigurationPy);
    files["modeling_nsa.py"] = std::string(kModelingPy);
  }
  files["README.md"] = ModelCard(state, facts);
  NSA_ASSIGN_OR_RETURN(files["checkpoint_state.json"], StateText(state));
  for (const auto& [name, text] : files) NSA_RETURN_IF_ERROR(WriteNewFile(folder / name, text));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExportResult> ExportModel(const fs::path& checkpoint, const fs::path& folder,
                                         const ExportOptions& options) {
  NSA_ASSIGN_OR_RETURN(const CheckpointModel model, ReadCheckpointModel(checkpoint));
  const v1::CheckpointState& state = model.state;
  ExportResult result;
  result.checkpoint = model.path;
  result.step = state.step();
  NSA_ASSIGN_OR_RETURN(const ExportedTokenizer tokenizer,
                       ExportTokenizer(state.spec(), options.tokenizer));
  result.has_tokenizer = !tokenizer.files.empty();
  NSA_ASSIGN_OR_RETURN(NewFolder target, NewFolder::Create(folder));
  const std::optional<PlainModel> plain =
      AsPlainModel(state.spec(), options.type == TensorType::kBf16, tokenizer.ids);
  if (plain.has_value()) result.architecture = plain->architecture;
  NSA_RETURN_IF_ERROR(WriteTensors(result.checkpoint, ModelTensors(state.spec()), plain, options,
                                   target.path(), &result));
  NSA_RETURN_IF_ERROR(WriteTexts(state, tokenizer, plain, options, result, target.path()));
  NSA_RETURN_IF_ERROR(target.Publish());
  return result;
}

}  // namespace nsa
